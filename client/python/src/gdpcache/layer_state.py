"""A layer of a server-side cache in the place of the tensor ``state`` [S, H, K, V]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdpcache._tensors import indices
from gdpcache.types import DataType, TensorLike

if TYPE_CHECKING:
    from gdpcache.client import Session


@dataclass(frozen=True)
class LayerState:
    """One layer's states, which the server owns. ``handle[indices]`` names the content of slots without fetching it."""

    session: Session
    layer: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[S, H, K, V]"""
        geometry = self.session.geometry
        return geometry.slots, geometry.heads, geometry.key_dim, geometry.value_dim

    @property
    def dtype(self) -> DataType:
        return self.session.geometry.state_dtype

    def __getitem__(self, slots: TensorLike | Sequence[int]) -> SlotStates:
        return SlotStates(self, tuple(indices("slots", slots)))


@dataclass(frozen=True)
class SlotStates:
    """What some slots of a layer hold, as an initial state."""

    state: LayerState
    slots: tuple[int, ...]
