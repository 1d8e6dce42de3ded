"""Which long-input policy keeps what is asked for, and what does it cost?

`python -m bench.long_input [--quick] [--json FILE]`. A sentence with a fact is hidden at a random
depth in a text of sentences about the same kinds of things, and asked for. Kept: how often the fact
is in the prompt that is left, by the bundled model's template and tokenizer, at a quarter and at
half of the tokens. The question repeats the sentence's words, or shares only the name of the thing
with it, or nothing. Time: what a policy takes per 1,000 tokens of the whole prompt, beside counting
them once, which every request costs. Texts are made up from a seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from serving.bundled import HEAVY, bundled_path
from serving.long_input.apply import Handled, cut_to_fit, with_memory
from serving.long_input.fitting import Frame
from serving.long_input.policies import MEMORY, POLICIES
from serving.long_input.words import Words
from serving.requests import Body, ChatBody, CompletionBody
from serving.tokens import PromptTokenizer

SHARES = (0.25, 0.5)
SENTENCES = 240
PER_TURN = 12  # sentences of a conversation's turn

ADJECTIVES = ["amber", "blunt", "copper", "distant", "frozen", "gilded", "hollow", "jagged"]
NOUNS = ["archive", "bridge", "cellar", "depot", "engine", "furnace", "gallery", "harbour", "kiln"]
VERBS = ["inspected", "repaired", "painted", "photographed", "measured", "reopened", "insured"]
PEOPLE = ["Aldo", "Britt", "Chidi", "Dara", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jun"]
MONTHS = ["January", "March", "April", "June", "August", "October", "December"]


@dataclass(frozen=True)
class Needle:
    """What is hidden, and ways to ask for it."""

    thing: str
    code: str

    @property
    def sentence(self) -> str:
        """What is hidden."""
        return f"The access code of the {self.thing} is {self.code}."

    @property
    def questions(self) -> dict[str, str]:
        """By what they have in common with it."""
        return {
            "same words": f"What is the access code of the {self.thing}?",
            "thing only": f"Which digits does one type to enter the {self.thing}?",
            "no word": "Which digits open this?",
        }


def sentences(rng: random.Random, count: int) -> list[str]:
    """Filler about the same kinds of things as the needle."""
    made = []
    for _ in range(count):
        thing = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
        verb, who, when = rng.choice(VERBS), rng.choice(PEOPLE), rng.choice(MONTHS)
        made.append(
            rng.choice(
                (
                    f"In {when} the {thing} was {verb} by {who}.",
                    f"{who} says that the {thing} has {rng.randint(2, 99)} doors.",
                    f"The list of {when} has no entry for the {thing}, and {who} {verb} it again.",
                )
            )
        )
    return made


def document(lines: list[str], question: str) -> ChatBody:
    """One message: a text, and a question at its end."""
    paragraphs = [" ".join(lines[at : at + 6]) for at in range(0, len(lines), 6)]
    return _chat([("user", "\n\n".join([*paragraphs, question]))])


def conversation(lines: list[str], question: str) -> ChatBody:
    """The same text told over many turns."""
    turns: list[tuple[str, str]] = []
    for at in range(0, len(lines), PER_TURN):
        turns += [("user", " ".join(lines[at : at + PER_TURN])), ("assistant", "Noted.")]
    return _chat([*turns, ("user", question)])


def _chat(turns: list[tuple[str, str]]) -> ChatBody:
    messages = [{"role": role, "content": text} for role, text in turns]
    return ChatBody.model_validate({"model": HEAVY, "messages": messages})


FORMS: dict[str, Callable[[list[str], str], ChatBody]] = {
    "document": document,
    "conversation": conversation,
}


@dataclass(frozen=True)
class Bench:
    """The bundled model's tokenizer, and what policies need of it."""

    tokenizer: PromptTokenizer
    frame: Frame

    @classmethod
    def load(cls) -> Bench:
        """As the gateway has them."""
        tokenizer = PromptTokenizer.load(str(bundled_path(HEAVY)))

        def encode(text: str) -> list[int]:
            body = CompletionBody(model=HEAVY, prompt=text, add_special_tokens=False)
            return tokenizer.encode(body)[0]

        def prompt(body: Body) -> list[int]:
            return tokenizer.encode(body)[0]

        words = Words(encode, tokenizer.decode)
        frame = Frame(words=words, encode=prompt, segment_tokens=128, recall_tokens=1024)
        return cls(tokenizer, frame)

    def cut(self, body: ChatBody, policy: str, *, prompt: Sequence[int], budget: int) -> Body:
        """What a policy leaves of a body."""
        came = Handled(body=body, prompts=[prompt])
        if policy == MEMORY:
            return with_memory(came, frame=self.frame, budget=budget)[0].body
        return cut_to_fit(came, policy=policy, frame=self.frame, budget=budget).body


def kept(bench: Bench, *, trials: int) -> list[dict[str, Any]]:
    """How often each policy keeps the needle."""
    found: dict[tuple[str, str, str, float], int] = {}
    for trial in range(trials):
        rng = random.Random(trial)
        needle = Needle(
            f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}", str(rng.randint(10_000, 99_999))
        )
        lines = sentences(rng, SENTENCES)
        lines.insert(rng.randint(0, len(lines)), needle.sentence)
        for form, make in FORMS.items():
            for asked, question in needle.questions.items():
                body = make(lines, question)
                prompt = bench.frame.encode(body)
                for policy in POLICIES:
                    for share in SHARES:
                        made = bench.cut(
                            body, policy, prompt=prompt, budget=int(share * len(prompt))
                        )
                        case = (form, asked, policy, share)
                        found[case] = found.get(case, 0) + (needle.code in made.model_dump_json())
    return [
        {"form": form, "asked": asked, "policy": policy, "share": share, "kept": hits / trials}
        for (form, asked, policy, share), hits in found.items()
    ]


def times(bench: Bench, *, tokens_k: int, rounds: int) -> dict[str, float]:
    """Processor milliseconds per 1,000 tokens, of counting and of each policy; the least."""
    rng = random.Random(0)
    lines = sentences(rng, tokens_k * 70)
    body = conversation(lines, "What is the access code of the amber mill?")
    prompt = bench.frame.encode(body)
    works: dict[str, Callable[[], object]] = {"count": lambda: bench.frame.encode(body)}
    for name in POLICIES:
        works[name] = partial(bench.cut, body, name, prompt=prompt, budget=len(prompt) // 4)
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):  # in turn, so that a busy moment hits all alike
        for name, work in works.items():
            start = time.process_time()
            work()
            taken[name].append(time.process_time() - start)
    return {name: 1e6 * min(seconds) / len(prompt) for name, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()

    bench = Bench.load()
    rows = kept(bench, trials=20 if arguments.quick else 200)
    cost = times(bench, tokens_k=4 if arguments.quick else 32, rounds=2 if arguments.quick else 5)
    print(f"{'':14}{'':13}" + "".join(f"{policy:>24}" for policy in POLICIES))
    heads = "".join(f"{share:>12.0%}" for _ in POLICIES for share in SHARES)
    print(f"{'form':14}{'asked':13}{heads}")
    for form in FORMS:
        for asked in Needle("", "").questions:
            by = {
                (row["policy"], row["share"]): row["kept"]
                for row in rows
                if (row["form"], row["asked"]) == (form, asked)
            }
            cells = "".join(
                f"{by[policy, share]:>12.0%}" for policy in POLICIES for share in SHARES
            )
            print(f"{form:14}{asked:13}{cells}")
    print()
    for name, ms in cost.items():
        print(f"{name:16}{ms:8.2f} ms per 1,000 tokens  {ms / cost['count']:6.2f} × counting")
    if arguments.json:
        figures = {"kept": rows, "ms_per_1000_tokens": cost}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
