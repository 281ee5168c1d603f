"""
Uncertainty for a model that you already have
=============================================

Your model is trained, tested and approved, and must not change. You want to know which of its
predictions the training data do not support. The first example uses a pipeline with scikit-learn's
``MLPClassifier``, the second a PyTorch module.
"""

# %%
# The fitted model
# ----------------
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

X, y = load_wine(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=50, stratify=y, random_state=0)
model = make_pipeline(StandardScaler(), MLPClassifier((30,), max_iter=500, random_state=0))
model.fit(X_train, y_train)
print(f"Test accuracy: {model.score(X_test, y_test):.3f}")

# %%
# Analyse it
# ----------
# A model in scikit-learn's ``FrozenEstimator`` is not retrained. :class:`~skuq.QUAMClassifier`
# copies the weights; its ``fit`` does not train the model, but needs the data that the model was
# trained on, because an alternative model must explain these data too.
import numpy as np
from sklearn.frozen import FrozenEstimator

from skuq import QUAMClassifier, predict_uncertainty

quam = QUAMClassifier(
    FrozenEstimator(model), search="pointwise", setting="selected", random_state=0
).fit(X_train, y_train)
same = np.abs(quam.predict_proba(X_test) - model.predict_proba(X_test)).max()
print(f"Largest difference of the probabilities: {same:.1e}")

# %%
# We compare twenty ordinary wines with damaged copies of the same wines: the decimal point of
# ``alcohol`` is missing, so 13.2 became 132.
ordinary = X_test[:20]
damaged = ordinary.assign(alcohol=10 * ordinary["alcohol"])

u_ordinary = predict_uncertainty(quam, ordinary)
u_damaged = predict_uncertainty(quam, damaged)
print(f"median confidence, ordinary: {np.median(quam.predict_proba(ordinary).max(axis=1)):.4f}")
print(f"median confidence, damaged:  {np.median(quam.predict_proba(damaged).max(axis=1)):.4f}")
print(f"median epistemic, ordinary:  {np.median(u_ordinary.epistemic):.3f} nats")
print(f"median epistemic, damaged:   {np.median(u_damaged.epistemic):.3f} nats")

# %%
# The model is *more* confident about the damaged rows than about the real ones. QUAM is not: models
# that explain the training wines equally well disagree widely about the damaged rows.
from skuq.plotting import UncertaintyHistogramDisplay

display = UncertaintyHistogramDisplay.from_predictions(
    {"ordinary wines": u_ordinary.epistemic, "decimal point lost": u_damaged.epistemic},
    label="epistemic uncertainty",
    unit="nats",
)

# %%
# A PyTorch module
# ----------------
# A bare module that returns logits works in the same way. A module does not know the names of its
# classes, so ``fit`` takes them from ``y``, in sorted order. A module has no preprocessing either:
# its inputs must be preprocessed in the same way as for its training. In a pipeline, the
# transformers come first and the frozen module is in the last step.
import torch
from torch import nn

scaler = StandardScaler().fit(X_train)
inputs = torch.tensor(scaler.transform(X_train), dtype=torch.float32)
labels = torch.tensor(y_train.to_numpy())

torch.manual_seed(0)
module = nn.Sequential(nn.Linear(13, 30), nn.ReLU(), nn.Linear(30, 3))
optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=1e-4)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(inputs), labels).backward()
    optimizer.step()

pipe = make_pipeline(
    FrozenEstimator(scaler),
    QUAMClassifier(FrozenEstimator(module), search="pointwise", setting="selected", random_state=0),
)
pipe.fit(X_train, y_train)
print(predict_uncertainty(pipe, damaged[:3]).to_frame(index=damaged.index[:3]).round(3))
