"""Models of the transformers library, small and untrained, through the estimators."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import cross_val_score
from skorch.helper import SliceDict

import skuq
from skuq.models import adopt, as_rows
from skuq.quam import PoolSearch, make_token_pool
from tests.models.around import around

transformers = pytest.importorskip("transformers")
N, LENGTH = 24, 6
Y, REST = np.arange(N) % 3, slice(20, None)
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 8, "num_labels": 3}
IMAGES = {"num_channels": 1, "num_labels": 3}


def bert(**settings):
    config = transformers.BertConfig(vocab_size=50, **{**SMALL, **settings})
    return transformers.BertForSequenceClassification(config)


def vit():
    config = transformers.ViTConfig(image_size=8, patch_size=4, **SMALL, num_channels=1)
    return transformers.ViTForImageClassification(config)


def resnet():
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1]}
    config = transformers.ResNetConfig(layer_type="basic", **sizes, **IMAGES)
    return transformers.ResNetForImageClassification(config)


def texts():
    rng = np.random.default_rng(0)
    mask = torch.tensor(np.arange(LENGTH) < rng.integers(3, LENGTH + 1, size=(N, 1))).long()
    ids = torch.tensor(rng.integers(1, 50, size=(N, LENGTH)))
    return transformers.BatchEncoding({"input_ids": ids * mask, "attention_mask": mask})


def images():
    pixels = np.random.default_rng(0).normal(size=(N, 1, 8, 8))
    return {"pixel_values": pixels.astype(np.float32)}


def of_kind(kind):
    sizes = {"vocab_size": 50, "d_model": 8, "num_labels": 3, "eos_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **OTHERS[kind]})
    return getattr(transformers, f"{kind}ForSequenceClassification")(config)


def ended():
    X = texts()
    X["input_ids"] = X["input_ids"].clamp(min=3) * X["attention_mask"]
    X["input_ids"][torch.arange(N), X["attention_mask"].sum(1) - 1] = 2  # the end of the text
    return X


MODELS = {"bert": (bert, texts), "vit": (vit, images), "resnet": (resnet, images)}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
OTHERS = {
    "DebertaV2": SMALL | {"relative_attention": True, "pos_att_type": ["c2p"]},
    "T5": {"d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
    "Bart": HEADS | {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8},
}
MODELS |= {kind: (partial(of_kind, kind), ended) for kind in OTHERS}
POOL = PoolSearch(n_steps=2)
KINDS = ["pool", "pool, all", "points", "points, all", "probe", "probe of hidden", "auditor"]
KINDS += ["Laplace", "distance", "ensemble"]


def made(name):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    return make().eval(), inputs()


def rows(X, chosen):
    return {field: values[chosen] for field, values in X.items()}


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_the_detector_takes_them_too(name):
    model, X = made(name)
    stacked = as_rows(model, X)
    detector = skuq.OODDetector(model).fit(rows(X, slice(20)), Y[:20], X_held_out=rows(X, REST))
    p_values = detector.p_values(X)
    assert ((p_values > 0) & (p_values <= 1)).all()
    detector.fit(stacked[:20], Y[:20], X_held_out=stacked[20:])
    np.testing.assert_array_equal(detector.p_values(stacked), p_values)
    with pytest.warns(UserWarning, match="A part of X is held out"):
        detector = skuq.OODDetector(model, random_state=0).fit(X, Y)
    assert len(detector.explain(rows(X, REST))) == N - 20


@pytest.mark.filterwarnings("ignore:The model's loss")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("bert", kind) for kind in KINDS),
        *(("vit", "pool"), ("vit", "probe of hidden"), ("resnet", "pool, all")),
        *((name, "pool") for name in OTHERS),
    ],
)
def test_estimators_take_the_model_and_what_its_preprocessing_returns(name, kind):
    model, X = made(name)
    estimator = around(kind, model).fit(X, Y)
    with torch.no_grad():
        tensors = {field: torch.as_tensor(values) for field, values in X.items()}
        expected = model(**tensors).logits.softmax(-1).numpy()
    if kind != "probe of hidden":  # which has a network of its own
        np.testing.assert_allclose(estimator.predict_proba(X), expected, atol=1e-6)
    some = estimator.predict_uncertainty(rows(X, slice(0, 3)))
    every = estimator.predict_uncertainty(X)
    assert np.isfinite(every.total).all()
    np.testing.assert_allclose(some.total, every.total[:3], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_a_copy_is_fine_tuned_and_the_model_stays(name):
    model, X = made(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    tuner = skuq.MirageFineTuner(model, region=lambda X: np.arange(len(X)) < 9, max_epochs=1)
    tuner.fit(X, Y)
    given = skuq.ReferenceClassifier(model).fit(X, Y).predict_proba(X)
    assert (tuner.predict_proba(X) != given).any()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert tuner.confidence_overlap(X) == tuner.confidence_overlap(as_rows(model, X))


@pytest.mark.filterwarnings("ignore:The model's loss")
def test_only_the_head_moves_unless_asked_for_more_and_new_texts_have_one_length():
    model, X = made("bert")
    quam = skuq.QUAMClassifier(model, search=POOL, random_state=0).fit(X, Y)
    assert len(quam._problem.problem.parameters) == 2
    total = quam.predict_uncertainty(X).total
    again = pickle.loads(pickle.dumps(quam))
    np.testing.assert_array_equal(again.predict_uncertainty(X).total, total)
    assert np.isfinite(quam.search_pool(X).predict_uncertainty(X).total).all()
    with pytest.raises(ValueError, match="pad texts"):
        quam.search_pool({field: values[:, :-1] for field, values in X.items()})


def test_classes_are_the_names_of_the_model_or_the_codes_of_the_labels():
    torch.manual_seed(0)
    names = np.array(["good", "bad", "mixed"])
    model, X = bert(id2label=dict(enumerate(names))).eval(), texts()
    by_code = skuq.ReferenceClassifier(model).fit(X, Y)
    by_name = skuq.ReferenceClassifier(FrozenEstimator(model)).fit(X, names[Y])
    assert by_code.classes_.tolist() == [0, 1, 2]
    assert by_name.classes_.tolist() == ["bad", "good", "mixed"]
    np.testing.assert_array_equal(by_name.predict(X), names[by_code.predict(X)])
    assert adopt(model).classes.tolist() == ["bad", "good", "mixed"]
    assert adopt(bert()).classes is None
    model.config.id2label = {str(code): name for code, name in enumerate(names)}  # as in JSON
    assert adopt(model).classes.tolist() == ["bad", "good", "mixed"]
    with pytest.raises(ValueError, match="ugly"):
        skuq.ReferenceClassifier(model).fit(X, np.array(["good", "ugly"])[Y % 2])
    model.config.id2label = dict(enumerate(["good", "bad", "bad"]))
    assert skuq.ReferenceClassifier(model).fit(X, Y).classes_.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="share a name"):
        skuq.ReferenceClassifier(model).fit(X, np.array(["good", "bad"])[Y % 2])


def test_texts_may_be_longer_later_and_stacked_arrays_are_the_same():
    model, X = made("bert")
    reference = skuq.ReferenceClassifier(model).fit(X, Y)
    longer = {field: np.pad(values.numpy(), ((0, 0), (0, 3))) for field, values in X.items()}
    proba = reference.predict_proba(X)
    np.testing.assert_allclose(reference.predict_proba(longer), proba, atol=1e-6)
    ids = np.array([[0, 250_001, 16_000_001]])  # large ones are kept
    assert adopt(model).inputs({"input_ids": ids}).long().tolist() == [ids.tolist()]
    stacked = np.stack([X["input_ids"], X["attention_mask"]], axis=1)
    np.testing.assert_array_equal(as_rows(model, X), stacked)
    np.testing.assert_array_equal(reference.predict_proba(stacked), proba)
    types = as_rows(model, {"input_ids": X["input_ids"], "token_type_ids": X["attention_mask"]})
    np.testing.assert_array_equal(types[:, 1], 1)


def test_cross_validation_splits_stacked_arrays_and_dictionaries_of_skorch():
    model, X = made("bert")
    kinds = as_rows(model, X), SliceDict(**{k: v.numpy() for k, v in X.items()})
    reference = skuq.ReferenceClassifier(model)
    np.testing.assert_array_equal(*(cross_val_score(reference, each, Y, cv=2) for each in kinds))


@pytest.mark.filterwarnings("ignore:The model's loss")
def test_a_model_of_one_label_is_a_regressor():
    torch.manual_seed(0)
    model, X = bert(num_labels=1).eval(), texts()
    quam = skuq.QUAMRegressor(model, noise=0.5, search=POOL, random_state=0)
    quam.fit(X, np.linspace(0, 1, N))
    assert (quam.predict_uncertainty(X).epistemic > 0).all()


def test_wrong_fields_and_outputs_are_named():
    ids = np.ones((4, 2))
    for X, message in (
        ({"attention_mask": ids}, "pass 'input_ids', too"),
        ({"input_ids": ids, "labels": ids}, r"drop \['labels'\]"),
        ({"input_ids": [[1, 2], [1]]}, "equal length"),
        ({"input_ids": ids, "attention_mask": np.ones((4, 3))}, "shape .* in all"),
    ):
        with pytest.raises(ValueError, match=message):
            skuq.ReferenceClassifier(bert()).fit(X, np.arange(4) % 3)
    model, X = made("bert")
    fitted = skuq.OODDetector(model, random_state=0).fit(X, Y)
    for change, message in (
        ({"attention_mask": None}, "fields .*'attention_mask'.* in `fit`"),
        ({"input_ids": X["input_ids"] + 45}, "an id has no embedding"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.predict({**X, **change})
    by_row = [{name: values[k] for name, values in X.items()} for k in range(N)]
    np.testing.assert_array_equal(as_rows(model, by_row), as_rows(model, X))
    with pytest.raises(ValueError, match="numbers") as caught:
        skuq.OODDetector(model).fit(["a text", "b text"] * 9, [0, 1] * 9)
    assert "tokenizer(texts, padding=True, truncation=True)" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="multi-label"):
        adopt(bert(problem_type="multi_label_classification"))
    bare = transformers.BertModel(transformers.BertConfig(vocab_size=50, **SMALL))
    with pytest.raises(ValueError, match="no logits"):
        skuq.ReferenceClassifier(bare).fit(texts(), Y)


def test_token_pools_hold_known_tokens_in_the_places_of_tokens():
    rng = np.random.default_rng(0)
    mask = (np.arange(8) >= rng.integers(0, 4, size=(30, 1))).astype(int)  # padded on the left
    ids = rng.integers(5, 99, size=(30, 8))
    ids[np.arange(30), mask.argmax(axis=1)] = 1  # as [CLS]
    ids[:, -1] = ids[::3, 5] = 2  # as [SEP], at the end and between two texts
    ids[::5, 6] = 3  # another special token
    X = np.stack([mask * ids, mask], axis=1)
    pool = make_token_pool(X, special=[3], n_inputs=300, random_state=0)
    assert pool.shape == (300, 2, 8)
    np.testing.assert_array_equal(pool[:, 0] != 0, pool[:, 1] == 1)
    assert np.isin(pool, X).all()
    places = {tuple(np.where(text < 4, text, 9)) for text in X[:, 0]}
    assert {tuple(np.where(text < 4, text, 9)) for text in pool[:, 0]} == places
    known = {tuple(sorted(text)) for text in X[:, 0]}
    crossed, ordered, drawn = np.split(pool[:, 0], 3)
    assert {tuple(sorted(text)) for text in ordered} <= known
    assert not {tuple(text) for text in ordered} <= {tuple(text) for text in X[:, 0]}
    assert all((X[:, 0, k][:, None] == crossed[:, k]).any(axis=0).all() for k in range(8))
    assert not {tuple(sorted(text)) for text in drawn} <= known
