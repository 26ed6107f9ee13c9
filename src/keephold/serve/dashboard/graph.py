"""A workflow as a picture: the positions of its boxes and arrows. `graph.html` draws it.

Steps are drawn top down in the order they are written. Nested steps are columns inside a frame. A jump is an arrow at
the right of its list. `draw` guarantees that nothing overlaps at any depth.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

WIDTH, HEIGHT = 184, 54
"""Size of a step without nested steps."""
MOST = 400
"""The most steps that are drawn; a larger workflow is only listed."""
_GAP = 30
_INSIDE = 14
_LABEL = 26
_LANE = 20
"""Distance between two parallel jumps."""
_ROUND = 8
_END = 18
"""Room below a list for jumps to its end."""

Step = Mapping[str, Any]


@dataclass(frozen=True)
class Node:
    """A step and its box."""

    step: Step
    x: float
    y: float
    width: float
    height: float = HEIGHT


@dataclass(frozen=True)
class Frame:
    """A frame around a step with nested steps (`outer`), or around one named list of them."""

    x: float
    y: float
    width: float
    height: float
    label: str = ""
    times: int = 0
    state: str = ""
    outer: bool = False


@dataclass(frozen=True)
class GraphEdge:
    """An arrow: `flow` to the next step, `success` or `error` for a jump. `taken`: the run followed it."""

    points: tuple[tuple[float, float], ...]
    kind: str
    taken: bool

    @property
    def path(self) -> str:
        """Return the arrow as an SVG path with rounded corners."""
        (x, y), *rest = self.points
        drawn = [f"M{x:g} {y:g}"]
        for at, (x, y) in enumerate(rest):
            if at + 1 < len(rest):
                drawn.append(_corner(self.points[at], (x, y), rest[at + 1]))
            else:
                drawn.append(f"L{x:g} {y:g}")
        return "".join(drawn)


@dataclass(frozen=True)
class Drawing:
    """All parts of the picture, and its size."""

    width: float
    height: float
    nodes: tuple[Node, ...] = ()
    frames: tuple[Frame, ...] = ()
    edges: tuple[GraphEdge, ...] = ()


def draw(steps: Sequence[Step]) -> Drawing | None:
    """Return the picture of a workflow; None if it has no steps, or too many."""
    if not 0 < _count(steps) <= MOST:
        return None
    drawn = _list(steps)
    return _moved(replace(drawn, width=drawn.width + 4, height=drawn.height + 4), 2, 2)


def numbered(steps: Sequence[Step], numbers: Iterator[int] | None = None) -> list[dict[str, Any]]:
    """Return the steps with their numbers, in the order they are written, for the list beside the picture."""
    numbers = numbers or count(1)
    found = []
    for step in steps:
        number = next(numbers)
        lists = [{**inner, "steps": numbered(inner["steps"], numbers)} for inner in step["lists"]]
        found.append({**step, "number": number, "lists": lists})
    return found


def _count(steps: Sequence[Step]) -> int:
    return sum(1 + sum(_count(inner["steps"]) for inner in step["lists"]) for step in steps)


def _list(steps: Sequence[Step]) -> Drawing:
    """Draw steps top down, with the arrows between them."""
    parts = [_step(step) for step in steps]
    core = max((part.width for part in parts), default=WIDTH)
    placed, y = [], 0.0
    for part in parts:
        placed.append(_moved(part, (core - part.width) / 2, y))
        y += part.height + _GAP
    height = max(0.0, y - _GAP)
    tops = [sum(part.height + _GAP for part in parts[:at]) for at in range(len(parts))]
    edges = list(_flow(steps, parts, tops, core))
    jumps = _jumps(steps, parts, tops, core, height)
    ends = any(edge.points[-1][1] > height for edge in jumps)
    margin = _LANE * len(jumps) + _LANE / 2 if jumps else 0
    return Drawing(
        core + margin,
        height + (_END if ends else 0),
        tuple(node for part in placed for node in part.nodes),
        tuple(frame for part in placed for frame in part.frames),
        (*(edge for part in placed for edge in part.edges), *edges, *jumps),
    )


def _step(step: Step) -> Drawing:
    if not step["lists"]:
        return Drawing(WIDTH, HEIGHT, (Node(step, 0, 0, WIDTH),))
    columns = [_list(inner["steps"]) for inner in step["lists"]]
    inner_width = sum(column.width + 2 * _INSIDE for column in columns) + _INSIDE * (len(columns) - 1)
    width = max(WIDTH, inner_width + 2 * _INSIDE)
    tall = max(column.height for column in columns) + _LABEL + _INSIDE
    x, y = (width - inner_width) / 2, HEIGHT + _INSIDE
    height = y + tall + _INSIDE
    nodes = [Node(step, 0, 0, width)]
    frames = [Frame(0, 0, width, height, state=step["state"], outer=True)]
    edges: list[GraphEdge] = []
    for inner, column in zip(step["lists"], columns, strict=True):
        frames.append(Frame(x, y, column.width + 2 * _INSIDE, tall, inner["name"], inner["times"]))
        moved = _moved(column, x + _INSIDE, y + _LABEL)
        nodes += moved.nodes
        frames += moved.frames
        edges += moved.edges
        x += column.width + 3 * _INSIDE
    return Drawing(width, height, tuple(nodes), tuple(frames), tuple(edges))


def _flow(steps: Sequence[Step], parts: Sequence[Drawing], tops: Sequence[float], core: float) -> list[GraphEdge]:
    lines = []
    for at in range(len(steps) - 1):
        if steps[at]["on_success"] and not steps[at]["skip_if"] and not steps[at]["condition"]:
            continue  # the run never continues with the next step
        taken = steps[at + 1]["state"] in ("done", "failed", "current") and steps[at]["visits"] > 0
        bottom = tops[at] + parts[at].height
        lines.append(GraphEdge(((core / 2, bottom), (core / 2, tops[at + 1])), "flow", taken))
    return lines


def _jumps(
    steps: Sequence[Step], parts: Sequence[Drawing], tops: Sequence[float], core: float, height: float
) -> list[GraphEdge]:
    places = {step["id"]: at for at, step in enumerate(steps)}
    lines: list[GraphEdge] = []
    for at, step in enumerate(steps):
        for kind, target, state in (("success", step["on_success"], "done"), ("error", step["on_error"], "failed")):
            if not target or (target not in places and target != "$end"):
                continue
            right = core / 2 + parts[at].width / 2
            y = tops[at] + (HEIGHT * 0.35 if kind == "success" else HEIGHT * 0.65)
            lane = core + _LANE * (len(lines) + 1)
            if target == "$end":
                points = ((right, y), (lane, y), (lane, height + _END - 4), (core / 2, height + _END - 4))
            else:
                to = places[target]
                end = tops[to] + HEIGHT / 2
                points = ((right, y), (lane, y), (lane, end), (core / 2 + parts[to].width / 2, end))
            lines.append(GraphEdge(points, kind, step["state"] == state))
    return lines


def _moved(drawing: Drawing, x: float, y: float) -> Drawing:
    return replace(
        drawing,
        nodes=tuple(replace(node, x=node.x + x, y=node.y + y) for node in drawing.nodes),
        frames=tuple(replace(frame, x=frame.x + x, y=frame.y + y) for frame in drawing.frames),
        edges=tuple(replace(line, points=tuple((a + x, b + y) for a, b in line.points)) for line in drawing.edges),
    )


def _corner(before: tuple[float, float], at: tuple[float, float], after: tuple[float, float]) -> str:
    """Return the SVG path to a corner and round it."""
    (near_x, near_y), (far_x, far_y) = _towards(at, before), _towards(at, after)
    return f"L{near_x:g} {near_y:g}Q{at[0]:g} {at[1]:g} {far_x:g} {far_y:g}"


def _towards(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """Return a point near the start, towards the end."""
    length = math.dist(start, end)
    share = 0 if length == 0 else min(_ROUND, length / 2) / length
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share
