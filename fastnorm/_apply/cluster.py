"""Chunks on the workers of a Dask cluster.

Dask hands them out, and repeats what a dead worker had: a chunk is read from the input and its bytes go to their place in the
file, so that doing it twice changes nothing. What is done with it is `files.fill`, as in the plain command.
"""

import contextlib
import logging
import os
import platform
import signal
from multiprocessing import resource_tracker

from .. import __version__
from .files import fill, in_stretches
from .signals import held

PATIENCE = 30  # seconds until a scheduler must answer and have a worker


def fill_by_workers(call, sources, targets, blocks, workers, address):
    """Do all chunks, on so many processes of this machine or by a scheduler's workers, and yield after each."""
    try:
        import distributed
    except ImportError as error:
        name = "--workers" if address is None else "--scheduler"
        raise ValueError(f"{name} needs distributed: pip install '.[dask]' in a checkout of fastnorm ({error})") from None
    if address is not None and not in_stretches(call, targets, blocks):
        raise ValueError(
            "--scheduler: along this axis, chunks share pages of the file, which two machines cannot write to at a time; "
            "use --workers, or a transposed file"
        )
    with contextlib.ExitStack() as stack:
        if address is None:
            cluster = _started("--workers", _local_cluster, distributed, min(workers, len(blocks)))
            name, address = "--workers", stack.enter_context(cluster)
        else:  # checked first: a client that never begins may wait for ever when it is collected
            name = f"--scheduler {address}"
            _started(name, distributed.comm.get_address_host_port, address)
        client = stack.enter_context(_started(name, distributed.Client, address, timeout=PATIENCE))
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            raise OSError(f"the scheduler at {client.scheduler.address} has no worker") from None
        arguments = {"call": call, "sources": sources, "targets": targets, "version": __version__}
        futures = client.map(fill_one, blocks, **arguments, pure=False)
        stack.callback(client.cancel, futures)
        for future in distributed.as_completed(futures):
            try:
                future.result()
            except Exception as error:
                raise OSError(_failure(error)) from None
            yield


def _started(option, start, *arguments, **options):
    """What starts, or why it does not: of addresses, protocols and processes, errors of many types come."""
    try:
        return start(*arguments, **options)
    except Exception as error:
        raise OSError(f"{option}: {error.__cause__ or error}") from None


@held()  # half a cluster cannot be closed, of which Dask would complain
def _local_cluster(distributed, workers):
    """Processes of one thread each, which leave Ctrl-C in their terminal to the command: it is blocked as they begin."""
    left = {getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, "pthread_sigmask")}
    if left:
        resource_tracker.ensure_running()  # of multiprocessing, which would unblock them if it had yet to start
        before = signal.pthread_sigmask(signal.SIG_BLOCK, left)
    try:
        return distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=0,  # a chunk bounds it, and mapped pages of files would count as a worker's own
            dashboard_address=":0",  # any port, as another cluster may have the usual one
            silence_logs=logging.CRITICAL,
        )
    finally:
        if left:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fill_one(block, call, sources, targets, version):
    """One chunk, in a worker. An error says which."""
    try:
        if version != __version__:
            raise OSError(f"has fastnorm {__version__}, the command {version}")
        for source in sources.values():
            source.check()
        for _ in fill(call, sources, targets, [block]):
            pass
    except Exception as error:
        from distributed import get_worker

        name = f"worker {get_worker().address} (process {os.getpid()} on {platform.node()})"
        raise OSError(f"{name}: {str(error) or type(error).__name__}") from error


def _failure(error):
    """What went wrong, also where a worker could not say."""
    return str(error) if type(error) is OSError else f"the cluster gave up: {type(error).__name__}: {error}"
