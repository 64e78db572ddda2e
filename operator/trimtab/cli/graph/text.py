"""A job's graph as text: every node in the order of the data, with what it does, where it runs and what leaves it."""

from __future__ import annotations

from trimtab.cli.graph.nodes import Graph


def text_of(graph: Graph) -> str:
    titles = max(len(node.title) for node in graph.nodes)
    tasks = max(len(node.does) for node in graph.nodes)
    lines = [f"RLJob {graph.name}"]
    for node in sorted(graph.nodes, key=lambda one: one.layer):
        lines.append(f"{node.title:<{titles}}  {node.does:<{tasks}}  @ {node.where}")
        for edge in graph.edges:
            if edge.source == node.id:
                back = " (back)" if graph.layer_of(edge.target) <= node.layer else ""
                lines.append(f"  -> {edge.target}: {edge.carries}{back}")
    return "\n".join(lines) + "\n"
