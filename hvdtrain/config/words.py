"""The faults of a job file in its user's words instead of pydantic's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# What a key is called elsewhere -> what it is called here.
SYNONYMS: Mapping[str, str] = {
    "accumulation_steps": "batch.accumulate",
    "amp": "precision",
    "arch": "model",
    "batch_size": "batch.per_rank",
    "dataset": "data",
    "engine": "backend",
    "grad_accum": "batch.accumulate",
    "grad_clip": "gradients.clip_norm",
    "gradient_accumulation_steps": "batch.accumulate",
    "image_shape": "data.shape",
    "learning_rate": "optimizer.lr",
    "log_dir": "output.dir",
    "lr_schedule": "schedule",
    "lr_scheduler": "schedule",
    "max_epochs": "epochs",
    "max_grad_norm": "gradients.clip_norm",
    "max_steps": "steps",
    "mixed_precision": "precision",
    "network": "model",
    "num_classes": "model.args.num_classes",
    "num_epochs": "epochs",
    "num_steps": "steps",
    "num_workers": "data.workers",
    "optim": "optimizer",
    "output_dir": "output.dir",
    "random_seed": "seed",
    "resolution": "data.image_size",
    "root": "data.path",
    "run_dir": "output.dir",
    "scheduler": "schedule",
    "sync_bn": "sync_batchnorm",
    "warmup": "schedule.warmup_epochs",
    "wd": "optimizer.weight_decay",
}

# Kind of fault, as pydantic names it -> what to say, given the facts that come with it.
_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_from_float", "int_parsing_size"), lambda _: "must be a whole number"
    ),
    **dict.fromkeys(("float_type", "float_parsing"), lambda _: "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), lambda _: "must be true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), lambda _: "must be a list"),
    "finite_number": lambda _: "must be a finite number",
    "string_type": lambda _: "must be text",
    "string_too_short": lambda _: "must not be empty",
    "path_type": lambda _: "must be a path",
    "greater_than": lambda facts: f"must be above {_number(facts['gt'])}",
    "greater_than_equal": lambda facts: f"must be at least {_number(facts['ge'])}",
    "less_than": lambda facts: f"must be below {_number(facts['lt'])}",
    "less_than_equal": lambda facts: f"must be at most {_number(facts['le'])}",
    "too_long": lambda facts: f"must be a list of {facts['max_length']} values",
}
_WIDEST = 80


def fault(item: Mapping[str, Any]) -> str:
    """What is wrong with a value, given one of the errors of a pydantic ``ValidationError``."""
    words = _WORDS.get(item["type"])
    if words:
        return words(item.get("ctx", {}))
    return str(item["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")


def shown(value: Any) -> str:
    """A value as it stands in YAML, cut to a line; empty for what has no short form."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | dict):
        return f"a list of {len(value)}" if isinstance(value, list) else "a section"
    text = repr(value) if isinstance(value, str | int | float) else str(value)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
