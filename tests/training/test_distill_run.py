"""Runs of distillation: they learn, resume exactly, and say what is wrong with a parent in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from support.command_line import vigneron
from support.resuming import TrainedOnce, check_third_arm, lose_optimizers, lose_schedule
from support.tiny_models import GROUPED_HEADS, byte_tokenizer, tiny_model
from support.tiny_runs import held_out_of, tiny_config, write_data
from vigneron import api
from vigneron.config import SemanticRewardConfig
from vigneron.errors import UserError
from vigneron.training.memory_plan import estimate

COMMON: dict[str, Any] = {
    "reward": {"kind": "binary"},
    "optimizer": {"actor_lr": 1e-3, "schedule": "cosine", "warmup_steps": 2},
}
SHARPNESS = 10
"""A random model is nearly uniform; its head times this is not."""
LOSSES: dict[str, dict[str, Any]] = {
    "exact": {"beta": 0.5},
    "top-k": {"beta": 0.0, "top_k": 64},
    "sampled": {"loss": "sampled"},
}


@pytest.fixture(scope="module")
def parent_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another width than the child, with rows of padding in its vocabulary, and sure of its tokens."""
    folder = tmp_path_factory.mktemp("models") / "parent"
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**{**GROUPED_HEADS, "hidden_size": 32, "vocab_size": 264}))
    with torch.no_grad():
        model.lm_head.weight.mul_(SHARPNESS)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def config_with(tiny_folder: Path, parent: Path, place: Path, method: dict[str, Any], **changes: Any) -> Any:
    options = {"name": "distill", "parent": str(parent), **method}
    return tiny_config(tiny_folder, write_data(place), method=options, **{**COMMON, **changes})


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("lose", [lose_optimizers, lose_schedule])
def test_every_part_of_the_state_is_needed(
    tiny_folder: Path, parent_folder: Path, tmp_path: Path, trained_once: TrainedOnce, lose: Any
) -> None:
    def config_in(place: Path) -> Any:
        return config_with(tiny_folder, parent_folder, place, LOSSES["exact"], steps=4, save_every=2, eval_every=2)

    check_third_arm(trained_once("distill", config_in), tmp_path, lose)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "share"),
    [
        ("exact", 16, 0.8),
        pytest.param("top-k", 30, 0.9, marks=pytest.mark.slow),
        pytest.param("sampled", 60, 0.9, marks=pytest.mark.slow),
    ],
)
def test_the_held_out_kl_to_the_parent_falls(
    tiny_folder: Path, parent_folder: Path, tmp_path: Path, name: str, steps: int, share: float
) -> None:
    changes: dict[str, Any] = {
        "steps": steps,
        "eval_every": steps,
        "save_every": 0,
        "group_size": 8 if steps < 60 else 16,
    }
    options = {"optimizer": {"actor_lr": 1e-2}, **changes}
    config = config_with(tiny_folder, parent_folder, tmp_path, LOSSES[name], **options)
    found = records(api.train(config, name="run", runs=tmp_path).folder)
    assert found[-1]["eval/kl_parent"] < share * found[0]["eval/kl_parent"]
    assert found[-1]["kl_parent"] < found[1]["kl_parent"]


@pytest.mark.slow
def test_a_run_of_ours_is_a_parent_and_its_checkpoint_is_kept_in_the_config(tiny_folder: Path, tmp_path: Path) -> None:
    """The parent is what its run ended with: a child that is the same model has no KL to it."""
    given: dict[str, Any] = {"method": {"name": "sft"}, "group_size": 1, "optimizer": {"actor_lr": 1e-2}, "steps": 2}
    sft = tiny_config(tiny_folder, write_data(tmp_path), **given, eval_every=0)
    parent = api.train(sft, name="parent", runs=tmp_path).folder
    last = parent / "checkpoints" / "step-2"
    config = config_with(tiny_folder, parent, tmp_path, {}, steps=1, eval_every=1)
    child = api.train(config, name="child", runs=tmp_path)
    assert child.config.method.parent == str(last)
    assert records(child.folder)[0]["eval/kl_parent"] > 1e-3
    same = config_with(last, parent, tmp_path, {}, steps=1, eval_every=1)
    assert records(api.train(same, name="same", runs=tmp_path).folder)[0]["eval/kl_parent"] == pytest.approx(
        0, abs=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("answered", [0, 5])
def test_prompts_need_no_answers(tiny_folder: Path, parent_folder: Path, tmp_path: Path, answered: int) -> None:
    """The check measures the rows that have one; a sample without a verdict is trained on like any other."""
    data = write_data(tmp_path)
    whole = config_with(tiny_folder, parent_folder, tmp_path, {}, steps=2, eval_every=2, save_every=0)
    wanted = records(api.train(whole, name="answers", runs=tmp_path).folder)
    for file in (data, held_out_of(data)):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        bare = [row if number < answered else {"prompt": row["prompt"]} for number, row in enumerate(rows)]
        file.write_text("".join(json.dumps(row) + "\n" for row in bare))
    found = records(api.train(whole, name="bare", runs=tmp_path).folder)
    assert [record.get("loss/distill") for record in found] == [record.get("loss/distill") for record in wanted]
    assert found[-1]["eval/kl_parent"] == wanted[-1]["eval/kl_parent"]
    assert ("eval/reward" in found[-1]) == (answered > 0)
    semantic = whole.model_copy(update={"reward": SemanticRewardConfig(kind="semantic")})
    with pytest.raises(UserError, match="has no 'answer'"):
        api.train(semantic, name="semantic", runs=tmp_path)


@pytest.mark.slow
def test_mistakes_are_one_line(tiny_folder: Path, parent_folder: Path, tmp_path: Path) -> None:
    def start(method: dict[str, Any], **changes: Any) -> None:
        options = {"method": {"name": "distill", **method}, **COMMON, **changes}
        api.train(tiny_config(tiny_folder, write_data(tmp_path), **options), name="run", runs=tmp_path)

    def refused(method: dict[str, Any], match: str, **changes: Any) -> None:
        with pytest.raises(UserError, match=match) as error:
            start(method, **changes)
        assert "\n" not in str(error.value)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)

    url = "http://127.0.0.1:9"
    here = str(parent_folder)
    refused({}, "`parent` is missing")
    refused({"parent": here, "loss": "sampled", "beta": 0.5}, "`beta` has no effect with `loss: sampled`")
    refused({"parent": here, "loss": "sampled", "top_k": 5}, "`top_k` has no effect with `loss: sampled`")
    refused({"parent": here, "beta": 1.5}, "method.beta")
    refused({"parent": here, "top_k": 300}, "method.top_k: 300 is more than the 260 tokens of the vocabulary")
    refused({"url": url}, "a server gives no whole distributions: set `top_k`")
    refused({"url": url, "top_k": 5}, "at temperature 1", sampling={"temperature": 0.7})
    refused({"parent": str(tmp_path / "nothing")}, r"^method.parent: '.*' is not a folder")
    refused({"parent": "runs/no-such-run"}, r"^method.parent: there is no run 'runs/no-such-run'")
    other = tmp_path / "other-tokens"
    shutil.copytree(parent_folder, other)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<more>"])
    tokenizer.save_pretrained(other)
    refused(
        {"parent": str(other)}, r"^method.parent: '.*' has another tokenizer than the model \(token 257 is '<more>'"
    )
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    refused({"parent": str(adapter)}, r"^method.parent: '.*' is an adapter: merge it into a model by `vigneron export`")


@pytest.mark.slow
def test_validate_knows_the_parent(tiny_folder: Path, parent_folder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"method: {{name: distill, parent: {parent_folder}}}\nmodel: {{name: {tiny_folder}, device: cpu}}\n"
        f"data: {{train: {write_data(tmp_path)}}}\nmax_new_tokens: 4\n"
    )
    answer = vigneron("validate", recipe)
    assert answer.code == 0, answer.err
    assert f"parent {parent_folder}: frozen" in answer.out
    answer = vigneron("validate", recipe, "method.parent=nothing/of/the/kind")
    assert answer.code != 0
    assert "method.parent: 'nothing/of/the/kind' is not a folder" in answer.err


@pytest.mark.slow
def test_the_memory_plan_knows_the_parent(tiny_folder: Path, parent_folder: Path, tmp_path: Path) -> None:
    """Matrices in bfloat16, norms in float32, once; and its hidden states for all samples of a step."""
    config = config_with(tiny_folder, parent_folder, tmp_path, {}, model={"name": str(tiny_folder)})
    plan = estimate(config, 8)
    assert plan is not None
    parts = {part.name: part.bytes for part in plan.parts}
    model = LlamaForCausalLM.from_pretrained(parent_folder)
    norms = sum(weight.numel() for name, weight in model.named_parameters() if "norm" in name)
    assert parts["parent"] == 2 * (sum(w.numel() for w in model.parameters()) - norms) + 4 * norms
    assert parts["hidden states for the exact KL"] == 4 * 2 * 4 * 32 * 4  # prompts, samples, tokens, width, bytes


def test_the_parents_own_config_is_not_needed_after_the_run(tiny_folder: Path, tmp_path: Path) -> None:
    """A trained child is loaded and evaluated without its parent."""
    parent = tmp_path / "parent"
    tiny_model("llama", seed=4).save_pretrained(parent)
    byte_tokenizer().save_pretrained(parent)
    folder = api.train(
        config_with(tiny_folder, parent, tmp_path, {}, steps=1, eval_every=0), name="run", runs=tmp_path
    ).folder
    shutil.rmtree(parent)
    assert "accuracy" in api.load_run(folder).evaluate()
