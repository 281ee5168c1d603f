"""Modules of libraries that tests do not install."""

import torch
from torch import nn


class Adapted(nn.Module):
    """As a model of PEFT: an adapter on a layer, which can be merged into its weights."""

    def __init__(self, net):
        super().__init__()
        last = net[-1]
        net[-1] = Adapter(last)
        self.base_model = net
        with torch.no_grad():  # together they are the network that was given
            last.weight.sub_(net[-1].up @ net[-1].down)

    def forward(self, X):
        return self.base_model(X)

    def get_base_model(self):
        return self.base_model

    def merge_and_unload(self):
        self.base_model[-1] = self.base_model[-1].merged()
        return self.base_model


class Adapter(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.full((2, layer.in_features), 0.1))
        self.up = nn.Parameter(torch.full((layer.out_features, 2), 0.1))

    def forward(self, X):
        return self.layer(X) + X @ self.down.T @ self.up.T

    def merged(self):
        with torch.no_grad():
            self.layer.weight.add_(self.up @ self.down)
        return self.layer
