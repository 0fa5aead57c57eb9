"""Several processes that compute together: started, agreed on what they do, and ended together."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.machinery import PathFinder
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from types import CodeType, ModuleType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from unmasked import _private
from unmasked._checks import number, require_positive

__all__ = ["Traffic", "agree", "count_bytes", "launch", "lost", "process_group", "tally"]

T = TypeVar("T")
_GRACE = 2.0  # seconds for the other ranks to end by themselves once one has failed


def launch(work: Callable[..., T], *args: object, ranks: int = 2, timeout: float = 60.0) -> list[T]:
    """Run a function in several processes of this machine that form one gloo group, and return what each returned.

    It is for trying things out, on a CPU, as tests and notebooks do; torchrun starts what is meant to last. If one
    process fails or dies, all are ended within seconds.

    The processes are fresh: nothing of the caller's is there, such as a GPU in use, threads, or the state of random
    numbers, but the function, with all that it names, of a notebook too, and its arguments. These travel by value,
    by cloudpickle; what can be imported is imported there. What they print goes where the program's output goes: of a
    notebook, to the terminal that started it.

    Args:
        work: Called in each process, in which `torch.distributed` is initialised.
        args: The arguments of each call.
        ranks: Number of processes.
        timeout: Seconds for which a process waits for another at the most.

    Returns:
        The results, in the order of the ranks.

    Raises:
        ValueError: ranks is less than 1, or timeout is not positive.
        ImportError: cloudpickle is missing.
        TypeError: work, or something that it names or is given, cannot be copied to another process.
        RuntimeError: A process failed, died, or was not heard of in time; the message says which and why.

    Examples:
        >>> launch(dist.get_rank, ranks=2)
        [0, 1]
    """
    if not callable(work):
        raise TypeError(f"work is of the type {type(work).__name__}; pass a function")
    require_positive(ranks=ranks)
    number("timeout", timeout, "be a positive number of seconds", above=0)
    sent = _by_value("work, or what it names or is given,", work, args)
    context = _context()
    with TemporaryDirectory() as folder:
        receivers: list[connection.Connection] = []
        processes: list[BaseProcess] = []
        for rank in range(ranks):
            receiver, sender = context.Pipe(duplex=False)
            where = (sent, rank, ranks, str(Path(folder, "store")), timeout, sender)
            process = context.Process(target=_work, args=where, daemon=True)
            with _private.without_program():
                process.start()
            sender.close()  # so that the end of the process ends the pipe
            receivers.append(receiver)
            processes.append(process)
        try:
            return _results(receivers, processes)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _context() -> Any:
    """Return how to start processes that are no forks of this one: by a server that has this module and torch."""
    if not _private.has_room_for_sockets() or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _by_value(subject: str, first: object, rest: object) -> bytes:
    """Pickle for another process, that has nothing of this one: what it cannot import goes by value."""
    try:
        import cloudpickle
    except ImportError:
        raise ImportError(
            "work goes to other processes by cloudpickle, which is missing: pip install cloudpickle"
        ) from None

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, ModuleType) and thing.__name__.startswith("torch."):  # some are made, not imported
                return resolve_name, (thing.__name__,)
            if isinstance(
                thing, CodeType
            ):  # cloudpickle may leave out its file, and a reader of a traceback wants the line
                make, values = self.dispatch_table[CodeType](thing)
                return make, tuple(thing.co_filename if each == "<dynamic-code>" else each for each in values)
            return super().reducer_override(thing)

    file, home = io.BytesIO(), _home(first)
    if home:
        cloudpickle.register_pickle_by_value(home)
    try:
        Pickler(file).dump((first, rest))
    except (TypeError, pickle.PicklingError) as error:
        raise TypeError(
            f"{subject} cannot be copied to another process ({error}): let work make files, locks and the like itself"
        ) from error
    finally:
        if home:
            cloudpickle.unregister_pickle_by_value(home)
    return file.getvalue()


def _home(work: object) -> ModuleType | None:
    """The module of a function, if it is in no place where another process would look: a module of tests, for one."""
    module = sys.modules.get(getattr(work, "__module__", None) or "__main__")
    if module is None or module.__name__ == "__main__" or module.__spec__ is None or module.__spec__.origin is None:
        return None  # cloudpickle sends it by value anyway, or it is Python's own
    return None if PathFinder.find_spec(module.__name__.partition(".")[0]) else module


def _work(sent: bytes, rank: int, ranks: int, path: str, timeout: float, sender: connection.Connection) -> None:
    threading.Thread(target=_end_with_caller, daemon=True).start()
    torch.set_num_threads(1)  # ranks share the cores
    if sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are here: nothing depends on the machine's name
    try:
        store = dist.FileStore(path, ranks)  # type: ignore[attr-defined]  # no address, in which a name could mean something else
        with process_group(timeout, backend="gloo", store=store, rank=rank, world_size=ranks):
            work, args = pickle.loads(sent)
            answer = (True, work(*args))
        answer_sent = _by_value("what work returned", *answer)
    except BaseException as error:
        answer_sent = pickle.dumps((False, (f"{type(error).__name__}: {error}", traceback.format_exc())))
    sys.stdout.flush()  # the caller ends this process as soon as it has the answer
    sender.send_bytes(answer_sent)


def _end_with_caller() -> None:
    """End a rank whose caller is killed: nobody else would."""
    caller = multiprocessing.parent_process()
    assert caller
    caller.join()
    os._exit(1)


def _results(receivers: list[connection.Connection], processes: list[BaseProcess]) -> list[Any]:
    """Wait for each rank's result; if one fails, give the others a moment to end, and tell the first cause."""
    results: dict[int, Any] = {}
    failed: dict[int, tuple[str, str]] = {}  # the message, and the lines of code that led there
    waiting = dict(zip(receivers, range(len(receivers)), strict=True))
    deadline: float | None = None
    while waiting and (deadline is None or time.monotonic() < deadline):
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        for ready in connection.wait(list(waiting), patience):
            assert isinstance(ready, connection.Connection)
            rank = waiting.pop(ready)
            try:
                succeeded, answer = pickle.loads(ready.recv_bytes())
            except EOFError:
                succeeded, answer = False, ("", "")
            if succeeded:
                results[rank] = answer
                continue
            failed[rank] = answer
            deadline = deadline or time.monotonic() + _GRACE
    if not failed:
        return [results[rank] for rank in range(len(processes))]
    # A rank that died has no message; an error of its own says more than the loss of another rank.
    rank = min(failed, key=lambda rank: (bool(failed[rank][0]), " has lost " in failed[rank][0], rank))
    message, lines = failed[rank]
    if not message:
        processes[rank].join()
        code = processes[rank].exitcode or 0
        message = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with the exit code {code}"
    error = RuntimeError(f"rank {rank} of {len(processes)}: {message}; all ranks are ended")
    if lines:
        error.add_note(lines)
    raise error


@contextmanager
def process_group(timeout: float, **where: Any) -> Iterator[None]:
    """Form a process group, and leave it at the end."""
    try:
        dist.init_process_group(timeout=timedelta(seconds=timeout), **where)
        if dist.get_backend() == "gloo":  # which connects at once: nobody may be done while another still does
            dist.barrier()
    except RuntimeError as error:  # of PyTorch's store or of gloo, which tells nothing but addresses
        raise _lost("while the group was formed: this rank has lost another rank", f"{timeout:g} s", error) from error
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def lost(call: str, peers: str, group: dist.ProcessGroup | None) -> Iterator[None]:
    """Name the ranks from which nothing came, where a transfer fails."""
    try:
        yield
    except RuntimeError as error:
        raise _lost(f"{call}: rank {dist.get_rank(group)} has lost {peers}", "the group's timeout", error) from error


def _lost(loss: str, timeout: str, error: RuntimeError) -> RuntimeError:
    reason = str(error).strip().splitlines()[0]
    return RuntimeError(f"{loss}, which died, ended, or takes longer than {timeout} ({reason})")


def agree(
    call: str, group: dist.ProcessGroup | None, check: Callable[[], Any] = lambda: None, /, **values: object
) -> Any:
    """Let every rank check its call and send its values to all; refuse on all ranks alike where one does or must.

    Return the result of the check.

    Tensors are described by shape and dtype, and by their device if that is no CPU. It is two collectives of a few
    hundred bytes: how long each rank's values are in writing, and the writing. Without it, a tensor of another size
    would be received in part, end a process in the middle of a transfer, or be waited for until a timeout; and a rank
    that refuses its call would leave the others waiting.
    """
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group is of the type {type(group).__name__}; pass a process group, or None for all ranks")
    refused: Exception | None = None
    result = None
    try:
        result = check()
    except (TypeError, ValueError) as error:
        refused = error
    mine = {"call": call} | {name: _described(value) for name, value in values.items()}
    ranks: list[Any] = [None] * dist.get_world_size(group)
    with lost(call, "another rank", group):
        dist.all_gather_object(ranks, mine | {"refused": refused and str(refused)}, group=group)
    reasons = [each.pop("refused") for each in ranks]
    for name in {name: None for each in ranks for name in each}:  # in their order
        by_value: dict[str, list[int]] = {}
        for rank, each in enumerate(ranks):
            by_value.setdefault(each.get(name, "missing"), []).append(rank)
        if len(by_value) > 1:
            differ = "; ".join(f"{value} on rank {', '.join(map(str, on))}" for value, on in by_value.items())
            call = ranks[0]["call"]  # the same words everywhere
            raise ValueError(f"{call}: the ranks differ in {name}: {differ}. All ranks must make the same calls")
    if refused is not None:
        raise refused
    for rank, reason in enumerate(reasons):
        if reason is not None:
            raise ValueError(f"{call}: rank {rank} refuses its call, and so do all: {reason}")
    return result


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        where = "" if value.device.type == "cpu" else f", {value.device.type}"
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}{where}"
    return str(value)


@dataclass
class Traffic:
    """The bytes that a rank has sent while they were counted, see `count_bytes`.

    Attributes:
        to_next: Bytes that were sent to the next rank of a ring.
        reduced: Bytes that were handed to an all-reduce, which sends nearly twice as many where it is a ring.
    """

    to_next: int = 0
    reduced: int = 0


_counts: list[Traffic] = []


def tally(*, to_next: int = 0, reduced: int = 0) -> None:
    """Add to the counts that are open."""
    for count in _counts:
        count.to_next += to_next
        count.reduced += reduced


@contextmanager
def count_bytes() -> Iterator[Traffic]:
    """Count the bytes of tensors that this rank sends, in `ring_attention` and `HeadParallel`.

    The few hundred bytes by which the ranks agree on each call are not counted.

    Yields:
        The counts, which grow until the end of the block.

    Examples:
        >>> from unmasked.parallel import ring_attention
        >>> def work():
        ...     q = torch.ones(1, 1, 4, 8)  # 4 tokens of 8, in float32
        ...     with count_bytes() as sent:
        ...         ring_attention(q, q, q)
        ...     return sent.to_next
        >>> launch(work, ranks=2)  # keys and values, to the other rank
        [256, 256]
    """
    count = Traffic()
    _counts.append(count)
    try:
        yield count
    finally:
        _counts.remove(count)
