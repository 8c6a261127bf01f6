"""The drawing of a pipeline: where its parts stand, and how arrows run between them."""

import re

from headrace.console.pipeline_graph import BOX_HEIGHT, BOX_WIDTH, GraphDrawing, drawing_of
from headrace.pipelines.run.run_state import new_state
from headrace.pipelines.spec.part_graph import PartGraph, PartNode


def node(name: str, kind: str = "step") -> PartNode:
    return PartNode(name, kind, name, "SQL")


def drawing(graph: PartGraph) -> GraphDrawing:
    return drawing_of(new_state("shop", master="local", available_now=False, graph=graph))


def test_a_part_stands_right_of_its_inputs_and_no_box_covers_another() -> None:
    names = [node("orders", "source"), node("cleaned"), node("counted"), node("totals", "sink")]
    dead = node("dead", "dead-letters")
    edges = (
        ("orders", "cleaned"),
        ("cleaned", "counted"),
        ("counted", "totals"),
        # It passes two columns.
        ("orders", "totals"),
        ("orders", "dead"),
    )
    drawn = drawing(PartGraph((*names, dead), edges))
    places = {box.name: (box.x, box.y) for box in drawn.boxes}
    assert all(places[source][0] < places[target][0] for source, target in edges)
    assert len(set(places.values())) == len(places)
    for x, y in places.values():
        assert x + BOX_WIDTH <= drawn.width
        assert y + BOX_HEIGHT <= drawn.height
    # The level stretches of the long arrow are between the boxes that it passes.
    [long] = [arrow for arrow in drawn.arrows if "H" in arrow]
    for x, y in re.findall(r" (\d+),(\d+) H", long):
        assert not any(
            box.x == int(x) and box.y <= int(y) <= box.y + BOX_HEIGHT for box in drawn.boxes
        )


def test_a_run_without_a_graph_is_drawn_as_nothing() -> None:
    assert drawing(PartGraph()).boxes == ()
