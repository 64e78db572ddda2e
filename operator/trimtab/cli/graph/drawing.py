"""A job's graph as SVG: a column for each layer, arrows with what they carry, weights on their way back below."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from trimtab.cli.graph.nodes import Edge, Graph, Node

_WIDTH, _HEIGHT = 230, 92
_GAP_X, _GAP_Y = 110, 30
_MARGIN = 24
_LINE = 14
_LETTERS = 36
_STYLE = (
    "text{font:11px sans-serif;fill:#222}.title{font-weight:bold;font-size:13px}.where{fill:#666}"
    "rect{fill:#f6f8fa;stroke:#57606a;rx:6}path{fill:none;stroke:#57606a;marker-end:url(#end)}"
    ".back{stroke:#9a6700;stroke-dasharray:4 3}.carries{fill:#0550ae;text-anchor:middle}"
)


@dataclass(frozen=True)
class _Box:
    x: int
    y: int

    @property
    def left(self) -> tuple[int, int]:
        return self.x, self.y + _HEIGHT // 2

    @property
    def right(self) -> tuple[int, int]:
        return self.x + _WIDTH, self.y + _HEIGHT // 2

    @property
    def bottom(self) -> tuple[int, int]:
        return self.x + _WIDTH // 2, self.y + _HEIGHT


def svg_of(graph: Graph) -> str:
    boxes = _placed(graph)
    lowest = max(box.y for box in boxes.values()) + _HEIGHT
    back = [edge for edge in graph.edges if _goes_back(graph, edge)]
    width = max(box.x for box in boxes.values()) + _WIDTH + _MARGIN
    height = lowest + _MARGIN + _GAP_Y * (len(back) + 1)
    size = {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    SubElement(svg, "title").text = f"RLJob {graph.name}"
    SubElement(svg, "style").text = _STYLE
    marker = {"id": "end", "markerWidth": "8", "markerHeight": "8", "refX": "7", "refY": "4", "orient": "auto"}
    head = SubElement(SubElement(svg, "defs"), "marker", marker)
    SubElement(head, "polygon", {"points": "0 0 8 4 0 8", "fill": "#57606a"})
    for edge in graph.edges:
        if edge not in back:
            _arrow(svg, edge, boxes[edge.source], boxes[edge.target])
    for number, edge in enumerate(back, 1):
        _way_back(svg, edge, boxes[edge.source], boxes[edge.target], y=lowest + number * _GAP_Y)
    for node in graph.nodes:
        _box(svg, node, boxes[node.id])
    indent(svg)
    return tostring(svg, encoding="unicode") + "\n"


def _goes_back(graph: Graph, edge: Edge) -> bool:
    return graph.layer_of(edge.target) <= graph.layer_of(edge.source)


def _placed(graph: Graph) -> dict[str, _Box]:
    boxes: dict[str, _Box] = {}
    taken: dict[int, int] = {}
    for node in graph.nodes:
        row = taken.get(node.layer, 0)
        taken[node.layer] = row + 1
        boxes[node.id] = _Box(_MARGIN + node.layer * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y))
    return boxes


def _box(svg: Element, node: Node, box: _Box) -> None:
    SubElement(svg, "rect", {"x": str(box.x), "y": str(box.y), "width": str(_WIDTH), "height": str(_HEIGHT)})
    lines = [("title", node.title)]
    lines += [("", line) for line in wrap(node.does, _LETTERS)[:3]]
    lines += [("where", line) for line in wrap(f"@ {node.where}", _LETTERS)[:2]]
    for number, (kind, line) in enumerate(lines, 1):
        place = {"x": str(box.x + 10), "y": str(box.y + 4 + number * _LINE)}
        SubElement(svg, "text", place | ({"class": kind} if kind else {})).text = line


def _arrow(svg: Element, edge: Edge, source: _Box, target: _Box) -> None:
    (x, y), (to_x, to_y) = source.right, target.left
    middle = (x + to_x) // 2
    SubElement(svg, "path", {"d": f"M{x} {y} C{middle} {y} {middle} {to_y} {to_x} {to_y}"})
    _label(svg, edge, middle, (y + to_y) // 2 - 4)


def _way_back(svg: Element, edge: Edge, source: _Box, target: _Box, *, y: int) -> None:
    (x, from_y), (to_x, to_y) = source.bottom, target.bottom
    SubElement(svg, "path", {"class": "back", "d": f"M{x} {from_y} L{x} {y} L{to_x} {y} L{to_x} {to_y}"})
    _label(svg, edge, (x + to_x) // 2, y - 4)


def _label(svg: Element, edge: Edge, x: int, y: int) -> None:
    SubElement(svg, "text", {"x": str(x), "y": str(y), "class": "carries"}).text = edge.carries
