"""A report on a fitted model and its predictions, as one HTML file. Needs ``dsmgp[plots]``."""

from dsmgp.report.report import report_html, write_report

__all__ = ["report_html", "write_report"]
