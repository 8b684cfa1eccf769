"""Where a model file lies: the path that a user gives, or in the folder of a model whose rows are beside it."""

from __future__ import annotations

from pathlib import Path

from dsmgp._util.archive import ModelFileError

__all__ = ["MODEL", "model_file"]

#: The model file in a folder of a model whose rows are beside it.
MODEL = "model.dsmgp"


def model_file(path: str | Path) -> Path:
    """Return the model file itself: a folder is that of a model whose rows are beside it."""
    path = Path(path)
    try:
        if not path.is_dir():
            return path
    except OSError as error:  # a name that is too long
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from error
    if not (path / MODEL).exists():
        raise ModelFileError(
            f"{path} is a folder that holds no model; give the name of a model file, or of a folder with "
            f"{MODEL} in it"
        )
    return path / MODEL
