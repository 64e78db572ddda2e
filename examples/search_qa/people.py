"""The corpus of the example: who knows whom, and who lives where, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

PEOPLE = tuple(a + b for a in ("a", "be", "ca", "do", "e", "fi", "go", "hu") for b in ("da", "la", "ni", "ro"))
TOWNS = ("bern", "oslo", "rome", "york", "lima", "kiev", "bonn", "cork")


@dataclass(frozen=True)
class Person:
    name: str
    friend: str
    town: str

    @property
    def passage(self) -> str:
        return f"{self.name} knows {self.friend} and lives in {self.town}"


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
    told = ("lives", "in", "and", "knows", "where", "the", "friend", "of", "?", "neither", "nothing", "~")
    return (*marks, *PEOPLE, *TOWNS, *told)
