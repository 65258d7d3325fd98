# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All that is taken from `torch.distributed`: a group's ranks and its key-value store.

`distributed_c10d._get_process_group_store` is private; it stands here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from mori_gemm_ar.errors import ConfigError, RendezvousError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store


def is_group(value: object) -> bool:
    """Whether it is a process group, or what `new_group` returns to ranks outside the new group."""
    import torch.distributed as dist

    if not dist.is_available():
        return False
    return isinstance(value, dist.ProcessGroup) or value is dist.GroupMember.NON_GROUP_MEMBER


def group_of(group: Any = None) -> ProcessGroup:
    """The group itself, the default one for None. Raises `ConfigError` when this process is not in it."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError("group must belong to torch.distributed; call torch.distributed.init_process_group first")
    chosen = dist.group.WORLD if group is None else group
    if chosen is dist.GroupMember.NON_GROUP_MEMBER:
        raise ConfigError(
            f"group must contain the caller, but rank {dist.get_rank()} of the default group is not in it; "
            f"call this on the members of the group only"
        )
    if not isinstance(chosen, dist.ProcessGroup):
        raise ConfigError(f"group={chosen!r} must be a torch.distributed process group, or None for the default one")
    try:
        _store_of(chosen)
    except KeyError:
        raise ConfigError(f"group={chosen!r} must not be destroyed; make a new group") from None
    return chosen


def rank_and_size(group: ProcessGroup) -> tuple[int, int]:
    """The caller's place in the group, and the number of its ranks."""
    import torch.distributed as dist

    return dist.get_rank(group), dist.get_world_size(group)


class GroupStore:
    """Calling it gives the store of a group; the group is not kept alive by it, so its port is free once it is gone."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = ref(group)

    def __call__(self) -> Store:
        group = self._group()
        try:
            if group is not None:
                return _store_of(group)
        except KeyError:
            pass
        raise RendezvousError("the process group must not be destroyed while ranks still meet; create the op anew")


def _store_of(group: ProcessGroup) -> Store:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_process_group_store(group)
