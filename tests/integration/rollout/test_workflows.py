"""Workflows of several turns and two policies, on real engines and a real bus: what is published says who said what."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.polling import eventually
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import GROUP_SIZE, Job, working
from tests.support.rollout.speakers import chat_tokenizer, role
from trimtab.fabric.wire.spans import Producer, model_mask
from trimtab.fabric.wire.trajectory import Finish, Scored, Trajectory
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate, label_of
from trimtab.rollout.workflows.number_guessing import NumberGuessing
from trimtab.rollout.workflows.solver_verifier import SolverVerifier
from trimtab.rollout.workflows.team import Role, Tokenizer
from trimtab.rollout.workflows.text_environment import TextEnvironment
from trimtab.weights.store.position import Position

TEXT = chat_tokenizer()
VERSIONS = {"solver": 2, "critic": 5}
GROUPS = 3


@pytest.fixture(scope="module")
def talkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of two policies: tiny, random, and able to write any printable character."""
    folder = tmp_path_factory.mktemp("talkers")
    for seed, policy in enumerate(VERSIONS):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(TEXT),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=TEXT.eos_token_id,
        )
        LlamaForCausalLM(config).save_pretrained(folder / policy)
        TEXT.save_pretrained(folder / policy)
    return folder


@pytest.fixture(scope="module")
def engines(talkers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, EngineProcess]]:
    processes = {name: EngineProcess(talkers / name, tmp_path_factory.mktemp(name)) for name in VERSIONS}
    for process in processes.values():
        process.start()
    yield processes
    for process in processes.values():
        process.kill()


@pytest.fixture
async def samplers(engines: Mapping[str, EngineProcess], talkers: Path) -> AsyncIterator[Mapping[str, PolicySampler]]:
    async with AsyncExitStack() as stack:
        made = {}
        for policy, process in engines.items():
            await process.serves()
            engine = await stack.enter_async_context(EngineClient(process.url, request_timeout_s=300.0))
            position = Position(epoch=1, version=VERSIONS[policy])
            await engine.update_weights_from_disk(talkers / policy, weight_version=label_of(position), timeout_s=60.0)
            made[policy] = PolicySampler(engine, VersionGate(position))
        yield made


def talking(sampler: PolicySampler, name: str, *, policy: str, chat: bool, max_new_tokens: int) -> Role:
    tokenizer = Tokenizer.of(TEXT)
    if not chat:
        tokenizer = Tokenizer(encode=tokenizer.encode, decode=tokenizer.decode)
    return role(sampler, name, policy=policy, tokenizer=tokenizer, max_new_tokens=max_new_tokens)


def pieces(trajectory: Trajectory, *, special: bool) -> list[tuple[Producer, str]]:
    """What was said by whom, in order."""
    said, place = [], 0
    for span in trajectory.spans:
        ids = trajectory.token_ids[place : place + span.length].tolist()
        said.append((span.producer, str(TEXT.decode(ids, skip_special_tokens=not special))))
        place += span.length
    return said


def words(trajectory: Trajectory) -> list[str]:
    """What the policy said, turn by turn."""
    return [text for producer, text in pieces(trajectory, special=False) if producer is Producer.MODEL]


def scored(trajectory: Trajectory) -> Scored:
    assert isinstance(trajectory.outcome, Scored), trajectory.outcome
    return trajectory.outcome


def assert_sampled_by(model: LlamaForCausalLM, trajectory: Trajectory) -> None:
    """Every logprob is that of the policy's own weights, given every token before it, whoever wrote it."""
    ids = trajectory.token_ids.tolist()
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    trained = np.flatnonzero(model_mask(trajectory.spans))
    expected = [logprobs[place - 1, ids[place]].item() for place in trained]
    assert trajectory.logprobs.tolist() == pytest.approx(expected, abs=2e-3)


async def test_solver_and_verifier_each_bring_a_group_for_their_own_policy(
    job: Job, samplers: Mapping[str, PolicySampler], talkers: Path
) -> None:
    roles = {
        "solver": talking(samplers["solver"], "solver", policy="solver", chat=True, max_new_tokens=12),
        "verifier": talking(samplers["critic"], "verifier", policy="critic", chat=True, max_new_tokens=24),
    }
    # Random models seldom say whole words: letters are the verdicts, and any of the small digits is an answer.
    workflow = SolverVerifier(
        retries=2, check="exact", answer_pattern="[0-9]", accept="e", reject="r", max_tokens=600,
        solver_text="{problem}", verifier_text="{problem} {solution}", retry_text="{feedback}", next_text="{solution}",
    )  # fmt: skip
    await job.issue(GROUPS, prompt={"prompt": "3+4", "answer": "7"})
    worker = job.worker(workflow, roles)
    async with working(worker):
        await eventually(lambda: worker.completed == GROUPS * GROUP_SIZE * 2, timeout_s=120.0)
    assert not worker.failures
    by_id = {trajectory.trajectory_id: trajectory for trajectory in await job.trajectories()}
    assert len(by_id) == GROUPS * GROUP_SIZE * 2
    models = {name: LlamaForCausalLM.from_pretrained(talkers / name, dtype=torch.float32) for name in VERSIONS}
    turns = set()
    for task in range(GROUPS):
        for index in range(GROUP_SIZE):
            solver, verifier = (by_id[f"task-{task}.{name}.{index}.0"] for name in ("solver", "verifier"))
            assert (solver.policy, verifier.policy) == ("solver", "critic")
            assert (solver.group_id, verifier.group_id) == (f"task-{task}.solver", f"task-{task}.verifier")
            attempts, judgements = words(solver), words(verifier)
            assert len(attempts) == len(judgements) == solver.turns == verifier.turns <= 3
            digits = [re.findall("[0-9]", attempt) for attempt in attempts]
            correct = [found[-1:] == ["7"] for found in digits]
            verdicts = [re.findall("[er]", judgement)[-1:] for judgement in judgements]
            assert all(verdict != ["e"] for verdict in verdicts[:-1])
            assert verdicts[-1] == ["e"] or solver.turns == 3
            assert scored(solver).reward == float(correct[-1])
            right = [v == (["e"] if c else ["r"]) for v, c in zip(verdicts, correct, strict=True)]
            assert scored(verifier).reward == pytest.approx(sum(right) / len(right))
            # Each hears the other's words as the environment's, within the template.
            heard = [text for producer, text in pieces(solver, special=True) if producer is not Producer.MODEL]
            assert heard[0] == "<|im_start|>user\n3+4<|im_end|>\n<|im_start|>assistant\n"
            for text, judgement in zip(heard[1:], judgements, strict=False):
                assert f"<|im_start|>user\n{judgement}<|im_end|>\n<|im_start|>assistant\n" in text
            for trajectory in (solver, verifier):
                version = VERSIONS[trajectory.policy]
                assert (trajectory.oldest_version, trajectory.newest_version) == (version, version)
                assert_sampled_by(models[trajectory.policy], trajectory)
            turns.add(solver.turns)
    assert len(turns) > 1, "every episode had as many turns as every other: retries were not tried"


async def test_a_text_environment_is_played_to_its_end_and_replays_to_the_same_reward(
    job: Job, samplers: Mapping[str, PolicySampler], talkers: Path
) -> None:
    player = talking(samplers["solver"], "solver", policy="solver", chat=False, max_new_tokens=16)
    workflow = TextEnvironment(
        environment="trimtab.rollout.workflows.number_guessing:NumberGuessing",
        environment_args={"low": 1, "high": 9},
        max_turns=12,
    )
    await job.issue(GROUPS, prompt={"number": 4})
    worker = job.worker(workflow, {"solver": player})
    async with working(worker):
        await eventually(lambda: worker.completed == GROUPS * GROUP_SIZE, timeout_s=120.0)
    assert not worker.failures
    model = LlamaForCausalLM.from_pretrained(talkers / "solver", dtype=torch.float32)
    finishes = set()
    for trajectory in await job.trajectories():
        environment = NumberGuessing(low=1, high=9)
        said = pieces(trajectory, special=False)
        assert said[0] == (Producer.PROMPT, environment.reset({"number": 4}))
        total = 0.0
        for turn, action in enumerate(words(trajectory)):
            answer, reward, done = environment.step(action)
            total += reward
            assert done == (turn == trajectory.turns - 1 and total == 1.0)
            if turn < trajectory.turns - 1:
                assert said[2 * turn + 2] == (Producer.ENVIRONMENT, answer)
        outcome = scored(trajectory)
        assert outcome.reward == total
        assert (outcome.finish is Finish.TURNS) == (total == 0.0)
        assert said[-1][0] is Producer.MODEL
        assert len(trajectory.logprobs) == trajectory.trained_tokens == model_mask(trajectory.spans).sum()
        assert_sampled_by(model, trajectory)
        finishes.add(outcome.finish)
    assert Finish.TURNS in finishes
    assert len(finishes) > 1, "nobody found the number: nothing was rewarded"


async def test_a_prompt_that_the_environment_refuses_is_quarantined_at_the_first_attempt(
    job: Job, samplers: Mapping[str, PolicySampler]
) -> None:
    player = talking(samplers["solver"], "solver", policy="solver", chat=False, max_new_tokens=4)
    workflow = TextEnvironment(environment="trimtab.rollout.workflows.number_guessing:NumberGuessing")
    await job.issue(1, prompt={"number": "four"})
    worker = job.worker(workflow, {"solver": player}, max_deliveries=5)
    async with working(worker):
        await eventually(job.settled, timeout_s=30.0)
    (entry,) = (await job.quarantined()).values()
    assert (entry.error, entry.attempts) == ("task-refused", 1)
    assert "column 'number' is 'four'" in entry.message
    assert worker.failures == {"task-refused": 1}
