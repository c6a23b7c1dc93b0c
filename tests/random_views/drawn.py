"""Choices, all of them of one generator of random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Drawn:
    def __init__(self, random: Random) -> None:
        self.random = random

    def below(self, count: int) -> int:
        return self.random.randrange(count)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def weighted(self, options: Mapping[T, int]) -> T:
        place = self.below(sum(options.values()))
        for option, weight in options.items():
            place -= weight
            if place < 0:
                return option
        raise AssertionError(options)

    def some(self, options: Sequence[T], least: int, most: int) -> list[T]:
        """Some of the options, each at most once, in a random order."""
        left = list(options)
        most = min(most, len(left))
        count = least + self.below(most - least + 1) if most > least else most
        return [left.pop(self.below(len(left))) for _ in range(count)]
