"""Options of Hugging Face's Trainer (TrainingArguments) and of programs built on it. Source: transformers, training_args.py."""

from preflight.plan.importers.facts import Facts, Options

_LENGTHS = ("max_seq_length", "model_max_length", "max_length", "cutoff_len", "block_size")


def read_trainer(options: Options, facts: Facts) -> None:
    """Says what a command line gives; nothing is filled in, as the rest may stand in a configuration of DeepSpeed or accelerate."""
    batch = options.number("per_device_train_batch_size")
    facts.take("training.micro_batch_size", batch)
    if not batch:
        return
    facts.take("said.accumulation", options.number("gradient_accumulation_steps"))
    facts.take("training.seq_length", options.number(*_LENGTHS))
    for name in ("bf16", "fp16"):
        if options.on(name):
            facts.say("training.precision", name, options.said[name].origin)
    if options.on("gradient_checkpointing"):
        facts.say("training.recompute", "full", options.said["gradient_checkpointing"].origin)
    if options.on("torch_compile"):
        facts.say("training.compiled", True, options.said["torch_compile"].origin)
    optimizer = options.word("optim")
    if optimizer:
        known = next((known for known in ("muon", "adam", "sgd") if known in optimizer.value), None)
        facts.say("training.optimizer", known, optimizer.origin)
