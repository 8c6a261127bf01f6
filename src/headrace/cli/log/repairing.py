"""What `headrace log repair` does and prints: the damage of a log, and the cost of each repair."""

from typing import Any

from headrace.cli.output import bytes_text, counted
from headrace.storage.files import Files
from headrace.storage.repair import DamagedExtent, Repair, RepairPlan, apply_repair, plan_repair


def run_repair(path: str, choice: str | None) -> tuple[RepairPlan, list[str] | None]:
    """Plan a repair, and carry it out if it is chosen and needed.

    The plan as it was before, and the files that hold what was taken out; None if nothing was done.
    """
    plan = plan_repair(path)
    if choice is None or not plan.damaged:
        return plan, None
    return plan, apply_repair(Files(), plan, Repair(choice))


def repaired_lines(plan: RepairPlan, path: str, choice: str, removed: list[str]) -> list[str]:
    """What a repair did, for people."""
    lost = counted(plan.lost_by(Repair(choice)), "offset")
    return [
        f"{path}: repaired; at most {lost} lost",
        *(f"  what was taken out is in {name}" for name in removed),
        "Start the broker: it scans the log and makes its indexes again.",
    ]


def plan_lines(plan: RepairPlan, path: str) -> list[str]:
    """The plan for people, with the commands that carry it out."""
    lines = [
        f"{path}: offsets {plan.start_offset} to {plan.end_offset - 1},"
        f" {bytes_text(plan.size_bytes)}"
    ]
    lines += [f"  {extent_text(extent)}" for extent in plan.damaged]
    if not plan.damaged:
        return [*lines, "There is no damage."]
    first = plan.damaged[0].first_offset
    return [
        *lines,
        "Nothing was changed. If another replica has the log whole, move this directory away, and"
        " the broker fetches it again.",
        "Otherwise stop the broker, run one of these, and start it again:",
        f"  headrace log repair --skip {path}   # loses at most"
        f" {counted(plan.lost_by(Repair.SKIP), 'offset')}, keeps all others",
        f"  headrace log repair --cut {path}   # ends the log at offset {first}, loses at most"
        f" {counted(plan.lost_by(Repair.CUT), 'offset')}",
    ]


def extent_text(extent: DamagedExtent) -> str:
    """One damaged extent: where, which offsets, why."""
    name = extent.path.rpartition("/")[2]
    offsets = (
        f"offsets {extent.first_offset} to {extent.end_offset - 1}"
        if extent.end_offset > extent.first_offset
        else f"from offset {extent.first_offset} on"
    )
    return (
        f"{name} at position {extent.position}: {offsets}"
        f" ({extent.limit - extent.position} bytes): {extent.reason}"
    )


def plan_document(plan: RepairPlan, removed: list[str] | None) -> dict[str, Any]:
    """The plan for programs; `removed` are the files a repair has left, None if there was none."""
    return {
        "topic": plan.partition.topic,
        "partition": plan.partition.partition,
        "start_offset": plan.start_offset,
        "end_offset": plan.end_offset,
        "flushed_offset": plan.flushed_offset,
        "damaged": [
            {
                "file": extent.path,
                "position": extent.position,
                "bytes": extent.limit - extent.position,
                "first_offset": extent.first_offset,
                "end_offset": extent.end_offset,
                "reason": extent.reason,
            }
            for extent in plan.damaged
        ],
        "repaired": removed is not None,
        "removed": removed or [],
    }
