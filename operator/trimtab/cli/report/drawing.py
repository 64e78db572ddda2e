"""Draws a chart as SVG. Colours are the page's, so that a drawing suits light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element, SubElement

from trimtab.cli.report.plot import Band, Chart, Level, Mark, Point, Scale, Series, thinned

_WIDTH, _WIDE = 540, 1112
_HEIGHT = 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 22, 34
_RIGHT_OF_WIDE = 96
_LINE = 13
_COLORS = 6
_BAR_GAP = 0.25
# So few points are seen one by one, and not only under the pointer.
_FEW = 24


def draw(chart: Chart) -> Element:
    width = _WIDE if chart.wide else _WIDTH
    # Wide charts share their time axis, with or without bands.
    right = width - (_RIGHT_OF_WIDE if chart.wide else _RIGHT)
    svg = Element(
        "svg",
        {"viewBox": f"0 0 {width} {_HEIGHT}", "role": "img", "aria-label": f"{chart.title}. {chart.note}"},
    )
    x = Scale(low=chart.x.low, high=chart.x.high, start=_LEFT, end=right)
    y = Scale(low=chart.y.low, high=chart.y.high, start=_HEIGHT - _BOTTOM, end=_TOP)
    for band in chart.bands:
        _draw_band(svg, band, x, y)
    _draw_axes(svg, chart, x, y)
    for level in chart.levels:
        _draw_level(svg, level, x, y)
    for mark in chart.marks:
        _draw_mark(svg, mark, x)
    for series in chart.series:
        _draw_series(svg, series, chart, x, y)
    return svg


def _draw_band(svg: Element, band: Band, x: Scale, y: Scale) -> None:
    top, bottom = y(band.high), y(band.low)
    if bottom - top <= 0:
        return
    box = {"x": _n(x.start), "y": _n(top), "width": _n(x.end - x.start), "height": _n(bottom - top)}
    SubElement(svg, "rect", {"class": f"band {band.tone}", **box})
    if bottom - top >= _LINE or band.low == y.low:
        _text(svg, band.label, x.end + 8, (top + bottom) / 2 + 4, f"band-label {band.tone}")


def _draw_axes(svg: Element, chart: Chart, x: Scale, y: Scale) -> None:
    for value in chart.y.ticks(chart.y.low, chart.y.high):
        SubElement(svg, "line", {"class": "grid", **_ends(x.start, y(value), x.end, y(value))})
        _text(svg, chart.y.text(value), x.start - 8, y(value) + 4, "tick end")
    SubElement(svg, "line", {"class": "axis", **_ends(x.start, y.start, x.end, y.start)})
    for value in chart.x.ticks(chart.x.low, chart.x.high):
        _text(svg, chart.x.text(value), x(value), y.start + 16, "tick middle")
    _text(svg, chart.x.name, x.end, y.start + 30, "tick end")


def _draw_level(svg: Element, level: Level, x: Scale, y: Scale) -> None:
    SubElement(svg, "line", {"class": "level", **_ends(x.start, y(level.value), x.end, y(level.value))})
    # On the left: curves come near what they aim at on the right.
    _text(svg, level.label, x.start + 6, y(level.value) - 5, "level-label")


def _draw_mark(svg: Element, mark: Mark, x: Scale) -> None:
    group = SubElement(svg, "g", {"class": "mark quiet" if mark.quiet else "mark"})
    SubElement(group, "title").text = mark.title
    SubElement(group, "line", _ends(x(mark.x), _TOP, x(mark.x), _HEIGHT - _BOTTOM))
    _text(group, mark.label, x(mark.x), _TOP - 7, "mark-label middle")


def _draw_series(svg: Element, series: Series, chart: Chart, x: Scale, y: Scale) -> None:
    points = list(series.points) if series.kind in ("steps", "dots") else thinned(series.points)
    group = SubElement(
        svg,
        "g",
        {
            "class": " ".join(_classes(series)),
            "data-name": series.name,
            "data-points": str(len(series.points)),
        },
    )
    if series.kind == "bars":
        _draw_bars(group, points, series, chart, x, y)
        return
    if series.kind != "dots" and len(points) > 1:
        SubElement(group, "path", {"d": _path(points, x, y, stepped=series.kind == "steps")})
    if series.quiet:
        return
    for point in points:
        dot = SubElement(group, "circle", {"cx": _n(x(point[0])), "cy": _n(y(point[1])), "r": "3.5"})
        SubElement(dot, "title").text = _said(series, chart, point)


def _classes(series: Series) -> Iterator[str]:
    yield from ("series", series.kind, f"color-{series.color % _COLORS}")
    if series.quiet:
        yield "quiet"
    elif series.kind == "line" and len(series.points) <= _FEW:
        yield "few"


def _draw_bars(group: Element, points: Sequence[Point], series: Series, chart: Chart, x: Scale, y: Scale) -> None:
    room = (x.end - x.start) / max(1, len(points))
    width = max(1.0, min(24.0, room * (1 - _BAR_GAP)))
    for point in points:
        top = y(point[1])
        box = {
            "x": _n(x(point[0]) - width / 2),
            "y": _n(top),
            "width": _n(width),
            "height": _n(max(0.5, y.start - top)),
        }
        bar = SubElement(group, "rect", box)
        SubElement(bar, "title").text = _said(series, chart, point)


def _path(points: Sequence[Point], x: Scale, y: Scale, *, stepped: bool) -> str:
    words = [f"M{_n(x(points[0][0]))} {_n(y(points[0][1]))}"]
    for across, up in points[1:]:
        words.append(f"H{_n(x(across))}V{_n(y(up))}" if stepped else f"L{_n(x(across))} {_n(y(up))}")
    return "".join(words)


def _said(series: Series, chart: Chart, point: Point) -> str:
    return f"{series.name}: {chart.y.text(point[1])} at {chart.x.name} {chart.x.text(point[0])}"


def _ends(x1: float, y1: float, x2: float, y2: float) -> dict[str, str]:
    return {"x1": _n(x1), "y1": _n(y1), "x2": _n(x2), "y2": _n(y2)}


def _text(parent: Element, text: str, x: float, y: float, style: str) -> None:
    SubElement(parent, "text", {"class": style, "x": _n(x), "y": _n(y)}).text = text


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
