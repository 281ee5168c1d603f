"""
A text classifier that says "I was not made for this"
=====================================================

A help desk classifies messages by intent. For a message about a recipe, the classifier returns
"opening hours", because it must choose one of its classes. :class:`~skuq.OODDetector` flags
out-of-distribution messages, with a known false alarm rate for messages of the known intents.
"""

# %%
# The messages of a bank's customers are generated from parts of sentences, with 150 messages for
# each of six intents. Some out-of-distribution messages are about other services of a bank, in
# similar words; the others are about topics that have nothing to do with banks.
import numpy as np

PARTS = {
    "balance": (
        "how much money is,what is the balance,show me the balance,tell me what is left",
        "in my savings account,on my current account,in my account,on the joint account",
    ),
    "lost card": (
        "i lost,somebody stole,i cannot find,i left on the train",
        "my card,my credit card,my debit card,the bank card of my wife,my wallet and the card",
    ),
    "transfer": (
        "transfer,send,move,wire,pay",
        "50 euros to my brother,200 dollars to anna,the rent to my landlord,money to my savings",
    ),
    "opening hours": (
        "when do you open,until when are you open,what are your opening hours,are you open",
        "on saturday,in the city centre,on holidays,at the branch next to the station,on monday",
    ),
    "new pin": (
        "i forgot,please reset,i want to change,how can i change",
        "my pin,the pin of my card,the secret number of my card,the code for the cash machine",
    ),
    "exchange rate": (
        "what is the rate of,how many euros do i get for,what do you charge for",
        "100 dollars,swiss francs,500 pounds,japanese yen,foreign money",
    ),
}
OTHER_SERVICES = {
    "mortgage": (
        "i want to borrow money for,what would you lend me for,which interest would i pay for",
        "a house,a flat in the city centre,a new roof,the house of my brother",
    ),
    "closing": (
        "i want to close,how can i end,i no longer need,please cancel",
        "my savings account,the joint account,my current account,my credit card",
    ),
    "limit": (
        "please raise the limit of,how high is the limit of,i want to lower the limit of",
        "my credit card,my debit card,the bank card of my wife,my current account",
    ),
}
ELSEWHERE = {
    "cooking": (
        "how long do i boil,can you give me a recipe for,what goes well with",
        "potatoes,lentil soup,a chocolate cake,fresh pasta,an egg",
    ),
    "weather": (
        "will it rain,how cold does it get,is there going to be snow",
        "in oslo tomorrow,on sunday,next week,at the lake tonight",
    ),
    "music": (
        "play,turn up,put on,skip",
        "some jazz,the second track of this album,a song by the beatles,the violin concerto",
    ),
}
BEFORE = ["", "", "hi ", "hello ", "please ", "could you help me ", "excuse me ", "good morning "]
AFTER = ["", "", " please", " thanks", " today", " as soon as you can", " if that is possible"]


def write(parts, n_each, rng):
    """Draw messages and their topics."""
    texts, topics = [], []
    for topic, (starts, ends) in parts.items():
        for _ in range(n_each):
            words = [rng.choice(part.split(",")) for part in (starts, ends)]
            texts.append(rng.choice(BEFORE) + " ".join(words) + rng.choice(AFTER))
            topics.append(topic)
    return np.array(texts), np.array(topics)


rng = np.random.default_rng(0)
texts, intents = write(PARTS, 150, rng)
order = rng.permutation(len(texts))
train, held_out, test = np.split(order, [400, 650])
ood = {
    "other services": write(OTHER_SERVICES, 50, rng)[0],
    "elsewhere": write(ELSEWHERE, 50, rng)[0],
}
for row in train[:4]:
    print(f"{intents[row]:14}", texts[row])

# %%
# A baseline classifier
# ---------------------
# The baseline is a logistic regression on TF-IDF features. It makes hardly any mistakes on messages
# of the known intents, but also returns an intent for all other messages.
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

classifier = make_pipeline(TfidfVectorizer(), LogisticRegression(C=10))
classifier.fit(texts[train], intents[train])
print("accuracy:", classifier.score(texts[test], intents[test]))
for text in ["can you give me a recipe for lentil soup", "how can i end my current account"]:
    print(f"{text!r} is about: {classifier.predict([text])[0]}")

# %%
# The detector uses the classifier without retraining, and compares messages with held-out messages.
# Of messages like the held-out ones, it flags at most 5 % in expectation. The held-out messages
# were used neither for the classifier nor for the TF-IDF weights.
from sklearn.frozen import FrozenEstimator

from skuq import OODDetector

of_words = OODDetector(FrozenEstimator(classifier), random_state=0).fit(
    texts[train], intents[train], X_held_out=texts[held_out]
)
print("scores that are combined:", of_words.scores_)

# %%
# The same with embeddings
# ------------------------
# Most text classifiers today are a small model on the embeddings of a large network. To avoid a
# download, this example uses latent semantic analysis: 40 components of the TF-IDF features,
# normalised like embeddings. A real encoder also represents words that do not occur in the bank's
# messages; to use a real encoder, replace ``encoder.transform`` by its method ``encode``.
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import Normalizer

encoder = make_pipeline(TfidfVectorizer(), TruncatedSVD(40, random_state=0), Normalizer())
embedded = encoder.fit_transform(texts[train])
head = LogisticRegression(C=10).fit(embedded, intents[train])
of_embeddings = OODDetector(FrozenEstimator(head), random_state=0).fit(
    embedded, intents[train], X_held_out=encoder.transform(texts[held_out])
)
print("scores that are combined:", of_embeddings.scores_)

# %%
# The table shows the percentage of messages that each detector flags. This percentage should be
# about 5 % for the six intents, as requested, and as large as possible for other messages. The
# third column is for the entropy alone, at the same false alarm rate: with a linear model on
# embeddings, the entropy is hard to beat. Messages about other services, which use similar words,
# are missed most often. The embeddings have fewer dimensions than there are words, and the detector
# on embeddings misses more of these messages.
import pandas as pd

alone = OODDetector(FrozenEstimator(head), scores=["entropy"], random_state=0).fit(
    embedded, intents[train], X_held_out=encoder.transform(texts[held_out])
)
groups = {"six intents": texts[test], **ood}
flagged = {
    name: {
        "words": (of_words.predict(group) == -1).mean(),
        "embeddings": (of_embeddings.predict(encoder.transform(group)) == -1).mean(),
        "entropy alone": (alone.predict(encoder.transform(group)) == -1).mean(),
    }
    for name, group in groups.items()
}
print((100 * pd.DataFrame(flagged).T).round(1))

# %%
# Plot of the p-values
# --------------------
# The plot shows the conformal p-values of the three groups. Of the first group, the six intents, at
# most a fraction p is expected to have a p-value of p or less. The p-values of the other groups
# concentrate at the smallest value, which means that no held-out message was as unusual.
import matplotlib.pyplot as plt

from skuq.plotting import OODDisplay

display = OODDisplay.from_estimator(
    of_embeddings,
    encoder.transform(texts[test]),
    {name: encoder.transform(group) for name, group in ood.items()},
)

# %%
# The next figure shows single messages, the most unusual on top. Bars show the combined surprise,
# on a square-root scale. Unlike p-values, the surprise still differs between messages that are more
# unusual than all held-out messages. Orange messages are flagged.
shown = np.unique(
    np.concatenate([texts[test[1:8]], ood["other services"][4::18], ood["elsewhere"][::30]])
)
surprise = of_embeddings.explain(encoder.transform(shown))["surprise"].to_numpy()
shown = shown[np.argsort(surprise)]
surprise = np.sort(surprise)
answers = head.predict(encoder.transform(shown))
flagged = of_embeddings.predict(encoder.transform(shown)) == -1
white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
# sphinx_gallery_thumbnail_number = 2
fig, ax = plt.subplots(figsize=(9, 5.5), layout="constrained")
for k, (value, answer) in enumerate(zip(surprise, answers, strict=True)):
    colour = "#D55E00" if flagged[k] else "#0072B2"
    ax.barh(k, value, color=colour, height=0.62)
    said = "I was not made for this" if flagged[k] else answer
    place = (np.sqrt(value) + 0.3) ** 2
    ax.text(place, k, said, va="center", color=colour, fontsize=9, bbox=white)
ax.set_xscale("function", functions=(np.sqrt, np.square))
ax.set_xlim(0, 2.6 * surprise[-1])
ax.set_xticks([1, 10, 50, 100, 200, 300])
ax.set_yticks(np.arange(len(shown)), shown, fontsize=9)
ax.set_xlabel("combined surprise")
ax.spines[["top", "right"]].set_visible(False)

# %%
# Why is a message unusual?
# -------------------------
# ``explain`` returns the p-value of each score. Messages about which the classifier is uncertain
# have small p-values for "entropy" and "energy"; "neighbors" is the distance to the most similar
# training messages, and "mahalanobis" the distance to the distributions of intents.
explained = of_embeddings.explain(encoder.transform(shown)).set_index(shown)[::-1]
columns = ["p_value", "most_unusual", "entropy", "energy", "neighbors", "mahalanobis"]
with pd.option_context("display.width", 130, "display.max_columns", 9, "display.max_colwidth", 44):
    print(explained[columns].round(3))

# %%
# This example is easy: the sentences are generated from parts, and most other messages contain
# words that do not occur in training. :doc:`/guide/ood` has results for the 150 intents of
# CLINC150, with a real encoder and sentences that people wrote.
