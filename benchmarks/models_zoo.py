"""One try of each kind of model that people have: does it work, how fast, and with which result?

    python -m benchmarks.models_zoo --record models_zoo

Small models of many libraries and architectures are trained on small data of their form, and passed
to `OODDetector` and to QUAM without any parameter but the seed. Recorded are CPU seconds, the AUROC
of simple OOD inputs, the share of new inputs that the detector flags (asked for: .05), and the
largest difference between QUAM's predictions and the model's. A refusal is recorded with its
sentence; an error that another package raises counts as raw. ``--only`` selects kinds by a part of
their names.
"""

import argparse
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from sklearn import discriminant_analysis, ensemble, linear_model, naive_bayes, neighbors, svm
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.metrics import roc_auc_score
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelPropagation
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import skuq
from benchmarks.harness import finish, parser, record, set_threads
from skuq import OODDetector, QUAMClassifier, QUAMRegressor
from skuq.imports import import_optional
from skuq.models import from_function

PACKAGE = str(Path(skuq.__file__).parent)
STARTS = {0: 400, 400: 200, 600: 100}  # training, held-out and new inputs: first one, and number
N, N_OOD = 700, 50


class Data(NamedTuple):
    """Training inputs and targets, held-out inputs, new inputs, and simple OOD inputs."""

    X: Any
    y: np.ndarray
    held_out: Any
    new: Any
    ood: Any

    @classmethod
    def of(cls, X: Any, y: np.ndarray, ood: Any) -> Self:
        parts = (X[start : start + n] for start, n in STARTS.items())
        train, held_out, new = parts
        return cls(train, y[: len(train)], held_out, new, ood)

    def altered(self, alter: Callable[[Any], Any]) -> Self:
        changed = {name: alter(part) for name, part in self._asdict().items() if name != "y"}
        return self._replace(**changed)


# --- data --------------------------------------------------------------------------------------


def rows(random: np.random.Generator) -> Data:
    """Rows of three overlapping classes; three numbers of OOD rows are far out of range."""
    y = random.integers(3, size=N)
    X = random.normal(size=(N, 8)) + 1.5 * np.eye(3, 8)[y]
    ood = X[:N_OOD] + 0.0
    ood[:, 3:6] += random.choice([-8, 8], size=(N_OOD, 3))
    return Data.of(X, y, ood)


def targets(random: np.random.Generator) -> Data:
    """The same rows with numeric targets."""
    data = rows(random)
    X = data.X
    y = X[:, 0] + np.sin(2 * X[:, 1]) + random.normal(0, 0.2, len(X))
    return data._replace(y=y.astype(np.float32))


def mixed(random: np.random.Generator) -> Data:
    """A table with two columns of categories, of which OOD rows have the wrong ones."""
    y = random.integers(2, size=N)
    shop = 2 * random.integers(2, size=N) + y
    table = pd.DataFrame({"a": random.normal(size=N), "b": random.normal(size=N) + 2 * y})
    for name, codes in {"shop": shop, "town": np.where(random.random(N) < 0.9, shop, 0)}.items():
        table[name] = pd.Categorical.from_codes(codes, list("wxyz"))
    ood = table[:N_OOD].assign(b=table["b"][:N_OOD] + 9)
    ood["town"] = pd.Categorical.from_codes((shop[:N_OOD] + 1) % 4, list("wxyz"))
    return Data.of(table, y, ood)


def texts(random: np.random.Generator) -> Data:
    """Short texts on three topics, which share half of their words with OOD texts."""

    def text(topic: int) -> str:
        numbers = random.integers(30, size=(2, 6))
        return " ".join(
            [*(f"topic{topic}x{k}" for k in numbers[0]), *(f"w{k}" for k in numbers[1])]
        )

    y = random.integers(3, size=N)
    X, ood = ([text(topic) for topic in topics] for topics in (y, [9] * N_OOD))
    return Data.of(np.array(X, dtype=object), y, np.array(ood, dtype=object))


def coded(random: np.random.Generator) -> Data:
    """The same table with codes of the categories; OOD rows have other combinations."""
    return mixed(random).altered(
        lambda table: np.column_stack(
            [table["a"], table["b"], table["shop"].cat.codes, table["town"].cat.codes]
        )
    )


def images(random: np.random.Generator) -> Data:
    """Images of bars in three directions; OOD images are inverted."""
    y = random.integers(3, size=N)
    X = random.normal(0, 0.1, size=(N, 1, 12, 12)).astype(np.float32)
    for image, label, at in zip(X[:, 0], y, random.integers(1, 10, N), strict=True):
        if label == 2:
            np.fill_diagonal(image[:, at - 1 :], 1)
        else:
            (image, image.T)[label][at : at + 2] += 1
    X = X.clip(0, 1)
    return Data.of(X, y, 1 - X[:N_OOD])


def large_bytes(random: np.random.Generator) -> Data:
    """Images of bytes."""
    return images(random).altered(lambda X: (255 * X).astype(np.uint8))


def frames(random: np.random.Generator) -> Data:
    """Four noisy frames of each image."""
    return images(random).altered(
        lambda X: (X[:, None] + random.normal(0, 0.1, (len(X), 4, 1, 12, 12))).astype(np.float32)
    )


def waves(random: np.random.Generator) -> Data:
    """Waves of three frequencies; OOD waves are rectangles."""
    y = random.integers(3, size=N)
    phase = (1 + y[:, None]) * np.linspace(0, 6, 24) + random.uniform(0, 6, (N, 1))
    X = (np.sin(phase) + random.normal(0, 0.2, (N, 24))).astype(np.float32)[:, :, None]
    return Data.of(X, y, 2 * np.sign(X[:N_OOD]))


def ids(random: np.random.Generator) -> Data:
    """Ids of tokens on three topics, between [CLS] and [SEP], padded; OOD ids do not occur."""
    y = random.integers(3, size=N)
    X = random.integers(5, 15, size=(N, 12)) + 10 * y[:, None]
    ood = random.integers(35, 45, size=(N_OOD, 12))
    for each in (X, ood):
        ends = random.integers(6, 12, size=len(each))
        each[:, 0], each[np.arange(len(each)), ends] = 3, 2
        each[np.arange(12) > ends[:, None]] = 0
    return Data.of(X, y, ood)


def tokens(random: np.random.Generator) -> Data:
    """The fields of a tokeniser."""
    return ids(random).altered(lambda X: {"input_ids": X, "attention_mask": 1 * (X > 0)})


# --- models ------------------------------------------------------------------------------------


def trained(module: nn.Module, data: Data) -> nn.Module:
    """Train a module for 60 steps on all training inputs."""
    X = data.X if isinstance(data.X, dict) else {"": data.X}
    X = {name: torch.as_tensor(values) for name, values in X.items()}
    y = torch.as_tensor(data.y)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(60):
        outputs = logits_of(module(X[""]) if "" in X else module(**X))
        if y.is_floating_point():
            loss = nn.functional.mse_loss(outputs[:, 0], y)
        else:
            loss = nn.functional.cross_entropy(outputs, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module.eval()


def logits_of(outputs: Any) -> torch.Tensor:
    """Logits of a module that may return several things."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    logits: torch.Tensor = outputs[0] if isinstance(outputs, tuple) else outputs["logits"]
    return logits


class Around(nn.Module):
    """A module whose `forward` is a function of itself and the inputs."""

    def __init__(self, compute: Callable[..., Any], **parts: nn.Module):
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.compute(self, x)


def convolutions(data: Data | None = None) -> nn.Module:
    chain = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(3),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(72, 3),
    )
    return chain if data is None else trained(chain, data)


def of_bytes(data: Data) -> nn.Module:
    return trained(Around(lambda own, x: own.net(x.float() / 255), net=convolutions()), data)


def several_views(data: Data) -> nn.Module:
    """Averages the logits of an image and of its rotation."""

    def compute(own: Any, x: torch.Tensor) -> torch.Tensor:
        both = torch.stack([x, x.flip(-1, -2)], dim=1)
        return own.net(both.flatten(0, 1)).unflatten(0, (-1, 2)).mean(1)

    return trained(Around(compute, net=convolutions()), data)


def of_frames(data: Data) -> nn.Module:
    def compute(own: Any, x: torch.Tensor) -> torch.Tensor:
        return own.net(x.flatten(0, 1)).unflatten(0, (-1, 4)).mean(1)

    return trained(Around(compute, net=convolutions()), data)


def with_heads(data: Data) -> nn.Module:
    """Returns a dictionary of two heads, of which one holds the logits."""

    def compute(own: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
        features = own.net(x)
        return {"size": own.size(features), "logits": own.label(features)}

    net = convolutions()[:-1]
    return trained(Around(compute, net=net, size=nn.Linear(72, 1), label=nn.Linear(72, 3)), data)


def with_tuple(data: Data) -> nn.Module:
    def compute(own: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = own.net(x)
        return own.label(features), features

    return trained(Around(compute, net=convolutions()[:-1], label=nn.Linear(72, 3)), data)


def recurrent(data: Data) -> nn.Module:
    def compute(own: Any, x: torch.Tensor) -> torch.Tensor:
        return own.label(own.lstm(x)[0][:, -1])

    parts = {"lstm": nn.LSTM(1, 16, batch_first=True), "label": nn.Linear(16, 3)}
    return trained(Around(compute, **parts), data)


def encoder(data: Data) -> nn.Module:
    """Transformer encoder of ids, which ignores padding."""

    def compute(own: Any, x: torch.Tensor) -> torch.Tensor:
        real = x != 0
        features = own.encoder(own.words(x), src_key_padding_mask=~real) * real[..., None]
        return own.label(features.sum(1) / real.sum(1, keepdim=True))

    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    parts = {"words": nn.Embedding(50, 16), "encoder": encoder, "label": nn.Linear(16, 3)}
    return trained(Around(compute, **parts), data)


def of_columns(data: Data) -> nn.Module:
    """Network of numbers and of two columns of ids, which it embeds."""

    def compute(own: Any, x: torch.Tensor) -> torch.Tensor:
        return own.net(torch.cat([x[:, :2], own.shop(x[:, 2].long())], dim=1).float())

    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    return trained(Around(compute, shop=nn.Embedding(4, 4), net=net), data)


def quantised(data: Data) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(convolutions(data), {nn.Linear}, torch.qint8)


def pretrained(name: str, **settings: Any) -> Callable[[Data], nn.Module]:
    """Small transformers model with random weights, trained briefly."""

    def make(data: Data) -> nn.Module:
        library = import_optional("transformers", extra="transformers")
        kind = "Image" if name == "ViT" else "Sequence"
        config = getattr(library, f"{name}Config")(num_labels=3, **settings)
        return trained(getattr(library, f"{name}For{kind}Classification")(config), data)

    return make


WORDS = {"vocab_size": 50, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 3}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = {**WORDS, **LAYERS, "intermediate_size": 32, "max_position_embeddings": 20}
T5 = {**WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
BART = {
    **WORDS,
    "d_model": 16,
    **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 32 for part in ("encoder", "decoder")},
    "max_position_embeddings": 20,
}
VIT = {"image_size": 12, "patch_size": 4, "num_channels": 1, "intermediate_size": 32, **LAYERS}


def boosted(library: str, name: str, **settings: Any) -> Callable[[Data], Any]:
    """Boosted trees of a library, which may stop early on the last fifth of the rows."""

    def make(data: Data) -> Any:
        module = import_optional(library, extra=None)
        if not settings.pop("stops", False):
            return getattr(module, name)(n_estimators=40, **settings).fit(data.X, data.y)
        X, y = data.X[:320], data.y[:320]
        last = {"eval_set": [(data.X[320:], data.y[320:])]}
        if library == "xgboost":
            settings["early_stopping_rounds"] = 5
            last["verbose"] = False
        else:
            last["callbacks"] = [module.early_stopping(5, verbose=False)]
        return getattr(module, name)(n_estimators=300, **settings).fit(X, y, **last)

    return make


def catboost(data: Data) -> Any:
    trees = import_optional("catboost", extra=None).CatBoostClassifier
    columns = (2, 3)
    return trees(iterations=50, verbose=0, cat_features=columns).fit(data.X, data.y)


class Client(ClassifierMixin, BaseEstimator):
    """Client of a service, whose `fit` has no effect."""

    def __init__(self, service: Any):
        self.service = service

    def fit(self, X: Any, y: Any) -> Self:
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return self.service(X)


def service(data: Data) -> Callable[[Any], np.ndarray]:
    return linear_model.LogisticRegression().fit(data.X, data.y).predict_proba


def fitted(*steps: Any) -> Callable[[Data], Any]:
    """Function that fits an estimator, or a pipeline of several, with the seed 0."""

    def make(data: Data) -> Any:
        model = make_pipeline(*steps) if len(steps) > 1 else steps[0]
        seeds = [name for name in model.get_params() if name.endswith("random_state")]
        return model.set_params(**dict.fromkeys(seeds, 0)).fit(data.X, data.y)

    return make


class Kind(NamedTuple):
    """Inputs and a trained model."""

    data: Callable[[np.random.Generator], Data]
    make: Callable[[Data], Any]


def members() -> list[tuple[str, Any]]:
    """Members of ensembles; two of them are pipelines."""
    scaled = make_pipeline(StandardScaler(), neighbors.KNeighborsClassifier(15))
    return [
        ("linear", make_pipeline(StandardScaler(), linear_model.LogisticRegression())),
        ("neighbours", scaled),
        ("bayes", naive_bayes.GaussianNB()),
    ]


def text_members() -> list[tuple[str, Any]]:
    words, counts = TfidfVectorizer(), HashingVectorizer(n_features=2**12, alternate_sign=False)
    return [
        ("linear", make_pipeline(words, linear_model.LogisticRegression())),
        ("bayes", make_pipeline(counts, naive_bayes.MultinomialNB())),
    ]


SGD = linear_model.SGDClassifier
KINDS = {
    # texts
    "TF-IDF, LogisticRegression": Kind(
        texts, fitted(TfidfVectorizer(), linear_model.LogisticRegression())
    ),
    "TF-IDF, SGDClassifier (log_loss)": Kind(
        texts, fitted(TfidfVectorizer(), SGD(loss="log_loss"))
    ),
    "TF-IDF, MultinomialNB": Kind(texts, fitted(TfidfVectorizer(), naive_bayes.MultinomialNB())),
    "TF-IDF, calibrated LinearSVC": Kind(
        texts, fitted(TfidfVectorizer(), CalibratedClassifierCV(svm.LinearSVC()))
    ),
    "TF-IDF, LinearSVC": Kind(texts, fitted(TfidfVectorizer(), svm.LinearSVC())),
    "TF-IDF, SVD, MLPClassifier": Kind(
        texts, fitted(TfidfVectorizer(), TruncatedSVD(20), MLPClassifier((20,), max_iter=60))
    ),
    "hashing to 2**20 columns, SGDClassifier": Kind(
        texts, fitted(HashingVectorizer(), SGD(loss="log_loss"))
    ),
    "voting of text pipelines": Kind(
        texts, fitted(ensemble.VotingClassifier(text_members(), voting="soft"))
    ),
    # tables
    "KNeighborsClassifier": Kind(rows, fitted(neighbors.KNeighborsClassifier())),
    "GaussianNB": Kind(rows, fitted(naive_bayes.GaussianNB())),
    "LinearDiscriminantAnalysis": Kind(
        rows, fitted(discriminant_analysis.LinearDiscriminantAnalysis())
    ),
    "QuadraticDiscriminantAnalysis": Kind(
        rows, fitted(discriminant_analysis.QuadraticDiscriminantAnalysis())
    ),
    "GaussianProcessClassifier": Kind(rows, fitted(GaussianProcessClassifier())),
    "LabelPropagation": Kind(rows, fitted(LabelPropagation())),
    "DecisionTreeClassifier": Kind(rows, fitted(DecisionTreeClassifier())),
    "RandomForestClassifier": Kind(rows, fitted(ensemble.RandomForestClassifier(50))),
    "ExtraTreesClassifier, balanced classes": Kind(
        rows, fitted(ensemble.ExtraTreesClassifier(50, class_weight="balanced"))
    ),
    "BaggingClassifier": Kind(rows, fitted(ensemble.BaggingClassifier())),
    "AdaBoostClassifier": Kind(rows, fitted(ensemble.AdaBoostClassifier())),
    "soft voting of pipelines": Kind(
        rows, fitted(ensemble.VotingClassifier(members(), voting="soft"))
    ),
    "hard voting": Kind(rows, fitted(ensemble.VotingClassifier(members()))),
    "StackingClassifier": Kind(rows, fitted(ensemble.StackingClassifier(members(), cv=3))),
    "OneVsRestClassifier": Kind(
        rows, fitted(OneVsRestClassifier(linear_model.LogisticRegression()))
    ),
    "OneVsOneClassifier": Kind(rows, fitted(OneVsOneClassifier(svm.SVC()))),
    "SVC": Kind(rows, fitted(svm.SVC())),
    "HistGradientBoostingClassifier, early stopping": Kind(
        rows,
        fitted(ensemble.HistGradientBoostingClassifier(early_stopping=True, n_iter_no_change=3)),
    ),
    "MLPClassifier, early stopping": Kind(rows, fitted(MLPClassifier((30,), early_stopping=True))),
    "LightGBM, categories": Kind(
        mixed, boosted("lightgbm", "LGBMClassifier", verbose=-1, n_jobs=1)
    ),
    "LightGBM, early stopping": Kind(
        rows, boosted("lightgbm", "LGBMClassifier", verbose=-1, n_jobs=1, stops=True)
    ),
    "XGBoost, categories": Kind(
        mixed, boosted("xgboost", "XGBClassifier", n_jobs=1, enable_categorical=True)
    ),
    "XGBoost, early stopping": Kind(
        rows, boosted("xgboost", "XGBClassifier", n_jobs=1, stops=True)
    ),
    "CatBoost, categories": Kind(mixed, catboost),
    # functions
    "from_function": Kind(rows, lambda data: from_function(service(data), [0, 1, 2])),
    "client whose fit has no effect": Kind(
        rows, lambda data: Client(service(data)).fit(data.X, data.y)
    ),
    # regressors
    "Ridge": Kind(targets, fitted(linear_model.Ridge())),
    "RandomForestRegressor": Kind(targets, fitted(ensemble.RandomForestRegressor(50))),
    "GradientBoostingRegressor": Kind(targets, fitted(ensemble.GradientBoostingRegressor())),
    "TransformedTargetRegressor, SVR": Kind(
        targets,
        fitted(TransformedTargetRegressor(svm.SVR(), func=np.arcsinh, inverse_func=np.sinh)),
    ),
    "MLPRegressor": Kind(
        targets, fitted(StandardScaler(), MLPRegressor(hidden_layer_sizes=(30,), max_iter=100))
    ),
    # modules
    "network with embeddings of categories": Kind(coded, of_columns),
    "CNN, batch normalisation and dropout": Kind(images, convolutions),
    "CNN, compiled": Kind(images, lambda data: torch.compile(convolutions(data), backend="eager")),
    "CNN, scripted": Kind(images, lambda data: torch.jit.script(convolutions(data))),
    "CNN, images of bytes": Kind(large_bytes, of_bytes),
    "CNN, several views of each image": Kind(images, several_views),
    "CNN, frames of a video": Kind(frames, of_frames),
    "CNN, two heads in a dictionary": Kind(images, with_heads),
    "CNN, tuple": Kind(images, with_tuple),
    "CNN, ending in a softmax": Kind(
        images, lambda data: nn.Sequential(convolutions(data), nn.Softmax(-1)).eval()
    ),
    "CNN, quantised head": Kind(images, quantised),
    "LSTM": Kind(waves, recurrent),
    "transformer encoder with padding": Kind(ids, encoder),
    # transformers
    "BERT": Kind(tokens, pretrained("Bert", **BERT)),
    "GPT-2": Kind(
        tokens, pretrained("GPT2", **WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=20)
    ),
    "Llama": Kind(tokens, pretrained("Llama", **BERT)),
    "T5": Kind(tokens, pretrained("T5", **T5, decoder_start_token_id=0)),
    "BART": Kind(tokens, pretrained("Bart", **BART)),
    "DeBERTa-v2": Kind(
        tokens,
        pretrained("DebertaV2", **BERT, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    ),
    "ViT": Kind(images, pretrained("ViT", **VIT)),
}


# --- one try of each ---------------------------------------------------------------------------


def predicted(model: Any, X: Any, *, regression: bool) -> np.ndarray:
    """Predictions of a model without skuq: probabilities or targets."""
    if not isinstance(model, nn.Module):
        values = model.predict(X) if regression else model.predict_proba(X)
        return np.asarray(values)
    with torch.no_grad():
        logits = logits_of(
            model(**tensors(X)) if isinstance(X, dict) else model(torch.as_tensor(X))
        )
    return logits.softmax(-1).numpy()


def tensors(X: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(values) for name, values in X.items()}


def auroc(ordinary: np.ndarray, ood: np.ndarray) -> float:
    """AUROC of OOD inputs; NaN if a model does not say anything about some input."""
    if not np.isfinite([*ordinary, *ood]).all():
        return np.nan
    return roc_auc_score(np.repeat([0, 1], [len(ordinary), len(ood)]), [*ordinary, *ood])


def detected(model: Any, data: Data, seed: int) -> dict[str, float]:
    detector = OODDetector(model, random_state=seed)
    detector.fit(data.X, data.y, X_held_out=data.held_out)
    new, ood = (detector.score_samples(part) for part in (data.new, data.ood))
    return {
        "auroc": auroc(-new, -ood),
        "false_alarms": float((new <= detector.offset_).mean()),
        "flagged": float((ood <= detector.offset_).mean()),
    }


def searched(model: Any, data: Data, seed: int) -> dict[str, float]:
    regression = data.y.dtype.kind == "f"
    quam = (QUAMRegressor if regression else QUAMClassifier)(model, random_state=seed)
    quam.fit(data.X, data.y)
    new, ood = (quam.predict_uncertainty(part) for part in (data.new, data.ood))
    own = predicted(model, data.new, regression=regression)
    theirs = quam.predict(data.new) if regression else quam.predict_proba(data.new)
    return {
        "auroc": auroc(new.epistemic, ood.epistemic),
        "auroc_total": auroc(new.total, ood.total),
        "difference": float(np.abs(own - theirs).max()),
        "sum": float(np.abs(new.total - new.aleatoric - new.epistemic).max()),
        "least": float(min(new.epistemic.min(), ood.epistemic.min())),
        "unknown": float(np.isnan(np.append(new.total, ood.total)).mean()),
    }


def sentence(error: Exception) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", [])])


def tried(name: str, kind: Kind, args: argparse.Namespace) -> list[dict]:
    """Records of both estimators on a model, or none if its library is not installed."""
    torch.manual_seed(args.seed)
    data = kind.data(np.random.default_rng([args.seed, zlib.crc32(name.encode())]))
    try:
        model = kind.make(data)
    except ImportError as error:
        print(f"{name}: {error}", flush=True)
        return []
    if not isinstance(model, nn.Module | FrozenEstimator):
        model = FrozenEstimator(model)
    records = []
    for method, function in {"OODDetector": detected, "QUAM": searched}.items():
        began = time.process_time()
        more = {}
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                figures = function(model, data, args.seed)
            figures["seconds"] = time.process_time() - began
            figures["warnings"] = len({str(each.message) for each in caught})
            shown = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
        except Exception as error:  # every refusal or fault is an outcome
            ours = traceback.extract_tb(error.__traceback__)[-1].filename.startswith(PACKAGE)
            figures = {"refused" if ours else "raw": 1.0}
            more["sentence"] = sentence(error)
            shown = f"{'refused' if ours else 'RAW'}: {type(error).__name__}: {more['sentence']}"
        print(f"{name}, {method}: {shown}", flush=True)
        for metric, value in figures.items():
            total = metric == "auroc_total"
            where = ("QUAM, total", "auroc") if total else (method, metric)
            records.append(record(name, *where, value, len(data.y)) | more)
        if args.verbose:
            print(*{f"    {each.category.__name__}: {each.message}" for each in caught}, sep="\n")
    return records


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="*", default=[], help="parts of names of kinds")
    arguments.add_argument("--verbose", action="store_true", help="print warnings")
    args = arguments.parse_args()
    set_threads(args)
    records = []
    for name, kind in KINDS.items():
        if not args.only or any(part in name for part in args.only):
            records += tried(name, kind, args)
    rates = [each["value"] for each in records if each["metric"] == "false_alarms"]
    if rates:
        spread = np.std(rates)
        records.append(
            record("all", "OODDetector", "false_alarms", np.mean(rates), len(rates), spread)
        )
    finish("models_zoo", args, records)


if __name__ == "__main__":
    main()
