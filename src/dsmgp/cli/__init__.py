"""The command line: ``dsmgp fit | predict | evaluate | report | info | demo | reproduce``. Needs ``dsmgp[cli]``."""
