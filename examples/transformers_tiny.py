"""A Hugging Face Llama, built from a configuration, learns a made-up language on any number of ranks.

Sentences differ in length, so ranks hold different numbers of tokens. ``weight=`` makes every gradient the
mean over the tokens of all ranks: N ranks train like one. Nothing is downloaded.
"""

import json

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

import hvdtrain

VOCABULARY = 32
GLOBAL_BATCH = 30  # sentences in a step over all ranks


class Sentences(torch.utils.data.Dataset):
    """Sentence i starts anywhere; each word follows from the one before it, but one in twenty is noise."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        random = torch.Generator().manual_seed(self.first + index)
        length = int(torch.randint(4, 25, (), generator=random))
        words = torch.randint(VOCABULARY, (length,), generator=random)
        is_noise = torch.rand(length, generator=random) < 0.05
        for place in range(1, length):
            if not is_noise[place]:
                words[place] = (5 * words[place - 1] + 3) % VOCABULARY
        return words

    def collate(self, sentences: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Fills sentences up to the longest; label -100 counts as no token."""
        words = pad_sequence(sentences, batch_first=True)
        is_word = pad_sequence([torch.ones_like(sentence) for sentence in sentences], batch_first=True)
        return {
            "input_ids": words,
            "attention_mask": is_word,
            "labels": words.masked_fill(is_word == 0, -100),
        }


def num_tokens(batch: dict[str, torch.Tensor]) -> int:
    """What the model's loss is a mean over: every word but the first of a sentence is predicted."""
    return int((batch["labels"][:, 1:] != -100).sum())


with hvdtrain.start() as run:
    # Without dropout, whose random masks would differ with the number of ranks.
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=None,
    )
    net = LlamaForCausalLM(config)  # stays the model itself: what to save, or to call ``generate`` on
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    model, optimizer = run.distribute(net, optimizer, clip_norm=1.0)
    loader = run.loader(Sentences(0, 1000), batch_size=GLOBAL_BATCH // run.size)
    test_loader = run.loader(Sentences(1000, 200), batch_size=GLOBAL_BATCH, train=False)

    for _ in run.epochs(3):
        model.train()
        for batch in run.progress(loader):
            run.step(model(**batch).loss, optimizer, weight=num_tokens(batch))

    model.eval()
    lost = tokens = 0.0
    with torch.no_grad():
        for batch in test_loader:
            count = num_tokens(batch)
            lost += model(**batch).loss.item() * count
            tokens += count
    lost, tokens = run.sum(torch.tensor([lost, tokens], dtype=torch.float64)).tolist()
    if run.rank == 0:
        print(json.dumps({"ranks": run.size, "loss": lost / tokens, "tokens": int(tokens)}))
