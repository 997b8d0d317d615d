"""In-place updates: a state is overwritten directly if all readers of its old value can run before.

In: the materialised graph and the updates of states. Out: a place for every stored value, the
states that are overwritten directly, and the updates that are copied at the end of the step.
A kernel must never read a state after its new value was stored there.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine.ir.graph import Buffer, Node, buffer
from imgmlp.engine.ir.kernel import Store, Update, read_at_element_only, storage
from imgmlp.engine.ir.op import Op
from imgmlp.engine.passes.drafts import KernelDraft, runs_after
from imgmlp.engine.passes.materialize import Graph


def choose_places(
    graph: Graph, updates: Sequence[Update]
) -> tuple[dict[Node, Node], set[Buffer], list[Update]]:
    """All places; the states that are overwritten directly; updates to copy at the end.

    The kernel of a new value may overwrite the state if every other kernel that reads the old value
    can run before it, if it reads the old value only at the element that it writes, and if no other
    state takes the old value unchanged. The same holds for a loop that carries the state.
    """
    trial = graph.places({})
    copied_from = {value.arg for _, value in updates if value.op is Op.BUFFER}
    drafts = graph.drafts(trial)
    edges = {d.order: set(d.predecessors) for d in drafts}
    direct: dict[Node, Node] = {}
    copied: list[Update] = []
    for state, value in updates:
        whole = value in trial and value not in direct and trial[value].op is Op.BUFFER
        if (
            whole
            and state not in copied_from
            and _can_overwrite(state, value, storage(trial[value]), drafts, edges)
        ):
            direct[value] = buffer(state)
        else:
            copied.append((state, value))
    return graph.places(direct), {storage(p) for p in direct.values()}, copied


def _can_overwrite(
    state: Buffer,
    value: Node,
    place: Buffer,
    drafts: list[KernelDraft],
    edges: dict[int, set[int]],
) -> bool:
    """Whether the kernel that fills `place` may write to the state instead.

    If so, `edges` from it to the readers of the old value are added.
    """
    if value.shape != state.shape or value.dtype is not state.dtype:
        return False
    needed = [d for d in drafts if not _only_copies(d, state, place)]
    readers = {d.order for d in needed if state in d.old_states_read}
    if not readers:
        return True
    writers = [d for d in needed if any(s.target is place for s in d.stores)]
    if len(writers) != 1:
        return False
    (writer,) = writers
    others = readers - {writer.order}
    if runs_after(edges, others, writer.order) or not _reads_at_element_only(writer, state):
        return False
    edges[writer.order] |= others
    return True


def _only_copies(draft: KernelDraft, state: Buffer, place: Buffer) -> bool:
    """Whether a draft only copies a state to the place of its new value, as the initial value of a
    loop or as one branch of a COND does."""
    (first, *more) = draft.stores
    value = first.value
    copies = value.op is Op.BUFFER and value.arg is state
    return copies and not more and first.target is place


def _reads_at_element_only(writer: KernelDraft, state: Buffer) -> bool:
    if any(storage(guard.condition) is state for guard in writer.guards):
        return False
    if writer.loop is not None:
        return state not in writer.old_states_read
    return read_at_element_only([s.value for s in writer.stores], state)


def order_after_readers(drafts: list[KernelDraft], in_place: set[Buffer]) -> None:
    """Add dependencies: a draft that overwrites a state runs after all readers of the old value."""
    for writer in drafts:
        for state in in_place & {s.target for s in writer.stores}:
            writer.predecessors |= {
                d.order for d in drafts if state in d.old_states_read and d is not writer
            }


def final_copies(
    drafts: list[KernelDraft], places: dict[Node, Node], copied: Sequence[Update]
) -> list[KernelDraft]:
    """Drafts that copy new values to states that could not be updated in place, after all others.

    A new value may be the old value of another state, so such values are first copied aside.
    """
    copies: list[KernelDraft] = []
    first = max((d.order for d in drafts), default=-1) + 1
    before = {d.order for d in drafts}

    def copy(target: Node, source: Node) -> None:
        stores = [Store(target, source)]
        order = first + len(copies)
        copies.append(KernelDraft(order, source.shape, stores, None, set(), set(), set(before)))

    moves = [(buffer(state), places.get(value, value)) for state, value in copied]
    states = {state for state, _ in copied}
    for i, (target, source) in enumerate(moves):
        if storage(source) in states:
            aside = buffer(Buffer(source.shape, source.dtype, name=f"aside{i}"))
            copy(aside, source)
            moves[i] = (target, aside)
    before |= {d.order for d in copies}
    for target, source in moves:
        copy(target, source)
    return copies
