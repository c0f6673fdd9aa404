"""The models of bench/ddp_models.h in PyTorch: make(name) returns the model and one batch for it."""
import torch
from torch import nn

VOCABULARY, WIDTH, LENGTH, LAYERS = 1024, 256, 128, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 8, batch_first=True)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))


class Lm(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text):
        x = self.words(text) + self.places(torch.arange(LENGTH, device=text.device))
        return self.output(self.blocks(x)).view(-1, VOCABULARY)


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def make(name):
    """Of "mlp", "cnn" or "lm": the model, its input and the classes that it is to find."""
    if name == "lm":
        return Lm(), torch.randint(VOCABULARY, (8, LENGTH)), torch.randint(VOCABULARY, (8 * LENGTH,))
    x = torch.randn(64, 784) if name == "mlp" else torch.randn(64, 1, 28, 28)
    return mlp() if name == "mlp" else cnn(), x, torch.randint(10, (64,))
