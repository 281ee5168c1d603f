"""
An agent on a windy cliff
=========================

The short path to the goal leads along a ledge, where wind blows the agent off the cliff with
probability .05 at each step. The mean return of this path is 4.86; the return of the long path is
always 4. A risk-averse agent should learn to take the long path, with few falls during training.
"""

import matplotlib.pyplot as plt
import numpy as np

from skuq import UADQN
from skuq.uadqn import GRIDWORLD

# %%
# Instead of training data, ``fit`` takes :term:`env seeds <env seed>`, with which the environment
# is reset. ``aleatoric_factor`` is the number of aleatoric standard deviations that the agent
# subtracts from the mean return.
seeds = np.arange(50)
settings = {**GRIDWORLD, "total_timesteps": 6_000, "random_state": 0}
careful = UADQN("CliffWind-v0", **settings).fit(seeds)

# %%
# The figure shows the return of each episode, the number of falls, and the rolling means of both
# standard deviations of the return. The epistemic part decreases with experience. The aleatoric
# part, the risk of the ledge, remains until the agent avoids the ledge.
history = careful.history_
fig, (top, middle, bottom) = plt.subplots(3, 1, sharex=True, figsize=(6, 6), layout="constrained")
top.plot(history.step, history.score, ".", markersize=3, color="0.6")
top.set(ylabel="return")
middle.plot(history.step, history.falls.cumsum(), color="k")
middle.set(ylabel="falls so far")
for part, colour in (("epistemic", "#0072B2"), ("aleatoric", "#D55E00")):
    bottom.plot(history.step, np.sqrt(history[part]).rolling(20).mean(), label=part, color=colour)
bottom.set(xlabel="steps", ylabel="standard deviation")
bottom.legend(frameon=False)
plt.show()

# %%
# The next figure shows the uncertainty of the action "right" in each cell. From the start (lower
# left) this action leads along the ledge, and the risk decreases with every cell; in the upper row
# the true risk is 0. The goal (lower right) is omitted, since the agent never acts there.
RIGHT = 1
cells = np.eye(10, dtype=np.float32)
u = careful.predict_uncertainty(cells, per_action=True)
parts = {
    "aleatoric: risk of the return": np.sqrt(u.aleatoric[:, RIGHT]),
    "epistemic: lack of experience": np.sqrt(u.epistemic[:, RIGHT]),
}
fig, axes = plt.subplots(2, 1, figsize=(6, 4.6), layout="constrained")
for ax, (title, deviation) in zip(axes, parts.items(), strict=True):
    shown = deviation.copy()
    shown[-1] = np.nan  # the agent never acts at the goal
    image = ax.imshow(shown.reshape(2, 5), cmap="cividis")
    for cell, value in enumerate(shown[:-1]):
        row, column = divmod(cell, 5)
        light = value > np.nanmax(shown) / 2
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", color="k" if light else "w")
    ax.set(title=title, xticks=[], yticks=[0, 1], yticklabels=["above", "below"])
    fig.colorbar(image, ax=ax, label="units of return", shrink=0.8)
plt.show()

# %%
# The numbers in the figures depend on the seed and, because training amplifies rounding errors, on
# the processor; some agents never find the long path. The following statements were true of ten
# agents, with the seeds 0 to 9:
risk = np.sqrt(u.aleatoric[:, RIGHT])
half = len(history) // 2
falls = history.falls[:half].sum(), history.falls[half:].sum()
print("risk of 'right' decreases along the ledge:", bool((np.diff(risk[5:9]) < 0).all()))
print("risk of 'right' at the start exceeds that in the cell above:", bool(risk[5] > risk[0]))
print("fewer falls in the second half of the episodes:", bool(falls[1] < falls[0]))
