"""The corpus of the example: who knows whom, and who lives where, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

FIRST = ("ada", "bela", "cleo", "doro", "ella", "finn", "gero", "hugo", "ines", "jana", "karl", "lena")
FAMILY = ("adler", "berg", "cohn", "dahl", "engel", "falk", "gross", "holm", "iser", "jung", "kern", "lang")
PEOPLE = tuple(f"{first} {family}" for first in FIRST for family in FAMILY)
TOWNS = ("bern", "oslo", "rome", "york", "lima", "kiev", "bonn", "cork")


@dataclass(frozen=True)
class Person:
    name: str
    friend: str
    town: str

    @property
    def passage(self) -> str:
        # Who is told of is named twice, so that a search for a name finds its own passage and not that of a friend.
        return f"{self.name} knows {self.friend} . {self.name} lives in {self.town}"


def draw_people(chance: random.Random) -> dict[str, Person]:
    """By name. Nobody is his own friend."""
    friends = list(PEOPLE)
    while any(name == friend for name, friend in zip(PEOPLE, friends, strict=True)):
        chance.shuffle(friends)
    return {name: Person(name, friend, chance.choice(TOWNS)) for name, friend in zip(PEOPLE, friends, strict=True)}


def question(person: Person) -> str:
    """It takes two searches to answer it: one for the friend's name, one for the friend."""
    return f"where lives the friend of {person.name} ?"


def words() -> Sequence[str]:
    """All that is ever said; the last stands for anything else."""
    marks = ("<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>")
    told = (".", "lives", "in", "knows", "where", "the", "friend", "of", "?", "neither", "nothing", "~")
    return (*marks, *FIRST, *FAMILY, *TOWNS, *told)
