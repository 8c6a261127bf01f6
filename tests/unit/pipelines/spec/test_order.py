"""What reads what, and in which order it can be made."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipelines.spec.dependencies import cycles, inputs, needed, ordered_steps, unused
from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeduplicateStep,
    Pipeline,
    PythonStep,
    Sink,
    SqlStep,
    Step,
    TopicSource,
)


def pipeline(*steps: Step, sink: str = "a") -> Pipeline:
    sources = (TopicSource("a", topics=("a",)), TopicSource("b", topics=("b",)))
    return Pipeline("p", sources, (Sink("out", sink, ConsoleSink()),), steps)


def names(parts: object) -> list[str]:
    assert isinstance(parts, list)
    return [part.name for part in parts]


def test_inputs_of_every_kind_of_part() -> None:
    assert inputs(TopicSource("a")) == ()
    assert inputs(SqlStep("s", "SELECT * FROM a JOIN b")) == ("a", "b")
    assert inputs(PythonStep("s", "f.py:f", ("b", "a"))) == ("b", "a")
    assert inputs(DeduplicateStep("s", "a", ("id",))) == ("a",)


def test_steps_may_be_declared_in_any_order() -> None:
    last = SqlStep("last", "SELECT * FROM Middle")
    middle = DeduplicateStep("middle", "first", ("id",))
    first = PythonStep("first", "f.py:f", ("a",))
    other = SqlStep("other", "SELECT * FROM b")
    declared = pipeline(last, other, middle, first, sink="LAST")
    assert names(ordered_steps(declared)) == ["first", "middle", "last", "other"]
    assert names(needed(declared, "last")) == ["a", "first", "middle", "last"]
    assert names(needed(declared, "a")) == ["a"]
    assert names(unused(declared)) == ["b", "other"]
    assert cycles(declared) == []


def test_circles_are_found_and_end() -> None:
    x, y = SqlStep("x", "SELECT * FROM y, a"), SqlStep("y", "SELECT * FROM X")
    alone = SqlStep("z", "SELECT * FROM z")
    declared = pipeline(x, y, alone, sink="x")
    assert cycles(declared) == [["x", "y"], ["z"]]
    assert set(names(needed(declared, "x"))) == {"a", "x", "y"}
    assert len(ordered_steps(declared)) == 3


def test_what_is_not_there_is_left_out() -> None:
    declared = pipeline(SqlStep("x", "SELECT * FROM nothing, a"))
    assert names(needed(declared, "x")) == ["a", "x"]
    assert needed(declared, "nothing") == []


edges = st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=8, max_size=8)


@given(edges)
def test_every_part_comes_after_what_it_reads_unless_there_is_a_circle(
    graph: list[list[int]],
) -> None:
    steps = [
        PythonStep(f"s{at}", "f.py:f", tuple(f"s{entry}" for entry in read))
        for at, read in enumerate(graph)
    ]
    declared = pipeline(*steps, sink="s0")
    order = names(ordered_steps(declared))
    assert sorted(order) == sorted(step.name for step in steps)
    late = [
        (step.name, name)
        for step in steps
        for name in step.inputs
        if order.index(name) >= order.index(step.name)
    ]
    assert bool(late) == bool(cycles(declared))
    assert set(names(needed(declared, "s0"))) <= set(order)
