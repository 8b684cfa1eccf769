"""The engine that writes and reads described classes: what is written comes back, and errors name the field."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from dsmgp import ModelFileError
from dsmgp.persistence import checks
from dsmgp.persistence.record import (
    ArrayField,
    Entry,
    Items,
    Length,
    Named,
    Part,
    Record,
    Section,
    Union,
)


@dataclass
class Circle:
    radius: float


@dataclass
class Polygon:
    corners: np.ndarray


@dataclass
class Drawing:
    title: str
    shapes: tuple
    size: int = 2
    frame: Circle | None = None
    colours: dict = field(default_factory=dict)


CIRCLE = Record("circles", Circle, {"radius": Entry(checks.number(0, 10))})
POLYGON = Record(
    "polygons",
    Polygon,
    {"corners": ArrayField((None, "dims"))},
    check=lambda polygon: len(polygon.corners) > 2,
)
SHAPE = Union("kind", {"Circle": CIRCLE, "Polygon": POLYGON}, lambda shape: type(shape).__name__)
DRAWING = Record(
    "drawings",
    Drawing,
    {
        "title": Entry(checks.TEXT, "about.title"),
        "shapes": Items(SHAPE, prefix="shape.", nullable=True),
        "size": Length("dims"),
        "frame": Part(CIRCLE, optional=True),
        "colours": Part(Named({"line": Entry(checks.TEXT)})),
    },
)


def stored(**changes):
    corners = np.arange(6.0).reshape(3, 2)
    drawing = Drawing("a", (Circle(1.0), None, Polygon(corners)), colours={"line": "red"})
    section = Section()
    DRAWING.write(Drawing(**{**vars(drawing), **changes}), section)
    return section


@pytest.mark.parametrize("frame", [None, Circle(2.0)])
def test_what_is_written_comes_back(frame):
    section = stored(frame=frame)
    assert section.header["about"] == {"title": "a"}
    assert list(section.arrays) == ["shape.2.corners"]
    drawing = DRAWING.read(section)
    assert drawing.shapes[:2] == (Circle(1.0), None)
    np.testing.assert_array_equal(drawing.shapes[2].corners, np.arange(6.0).reshape(3, 2))
    assert (drawing.frame, drawing.colours, drawing.size) == (frame, {"line": "red"}, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, a: h["about"].pop("title"), r"it lacks 'about\.title'"),
        (lambda h, a: h.update(about=[]), r"it lacks 'about\.title'"),
        (lambda h, a: h["about"].update(title=3), r"'about\.title' is 3, expected text"),
        (lambda h, a: h["shapes"][0].update(radius=11.0), r"'shapes\.0\.radius' is 11\.0, expected a number in \[0, 10\]"),
        (lambda h, a: h["shapes"][0].update(radius=True), r"'shapes\.0\.radius' is True"),
        (lambda h, a: h["shapes"][0].update(radius=float("nan")), r"'shapes\.0\.radius' is nan"),
        (lambda h, a: h["shapes"][0].update(kind="Popen"), r"'shapes\.0\.kind' is 'Popen', expected one of 'Circle', 'Polygon'"),
        (lambda h, a: h["shapes"][0].update(kind=["Circle"]), r"'shapes\.0\.kind' is \['Circle'\]"),
        (lambda h, a: h["shapes"].append(3), "a list, each entry an object"),
        (lambda h, a: h.update(frame="none"), "'frame' is 'none', expected an object"),
        (lambda h, a: h["colours"].update(fill="blue"), r"the unknown entry 'colours\.fill'"),
        (lambda h, a: a.clear(), r"lacks the array 'shape\.2\.corners'"),
        (lambda h, a: a.update({"shape.2.corners": np.ones((2, 2))}), "it has invalid polygons"),
        (lambda h, a: a.update({"shape.2.corners": np.ones(6)}), r"float64 \(6,\), expected float64"),
        (lambda h, a: a.update({"shape.2.corners": np.full((3, 2), np.inf)}), "not finite"),
    ],
)  # fmt: skip
def test_errors_name_the_field(change, message):
    section = stored()
    change(section.header, section.arrays)
    with pytest.raises(ModelFileError, match=message):
        DRAWING.read(section)


def test_axes_with_the_same_name_have_the_same_length():
    section = stored(shapes=[Polygon(np.ones((3, 2))), Polygon(np.ones((3, 3)))])
    with pytest.raises(ModelFileError, match=r"shape\.1\.corners' .* expected .* 2"):
        DRAWING.read(section)


def test_errors_of_constructors_refuse_the_file_only_if_they_are_about_values():
    def make(radius, error):
        raise error

    for error, raised in (
        (ValueError("too round"), ModelFileError),
        (TypeError("a fault"), TypeError),
    ):
        record = Record("circles", lambda radius, error=error: make(radius, error), CIRCLE.fields)
        with pytest.raises(raised, match=str(error)):
            record.read(Section({"radius": 1.0}))
