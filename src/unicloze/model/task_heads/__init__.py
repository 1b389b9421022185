"""Task heads: states of predicted slots to classes, quantities or choices, with one module per kind of head.

task_head.py      what all heads share: losses and the interface
    |
linear.py         an output layer, after a dense layer or not   (word_encoder.py: a biLSTM before both)
normed.py         ULMFiT's layers with batch normalisation
biattentive.py    CoVe's network for one text or two
"""

from collections.abc import Mapping

from unicloze.model.task_heads.biattentive import BiattentiveHead
from unicloze.model.task_heads.linear import LinearHead
from unicloze.model.task_heads.normed import NormedHead
from unicloze.model.task_heads.task_head import TaskHead
from unicloze.settings import HeadName

TASK_HEADS: Mapping[HeadName, type[TaskHead]] = {
    "dense": LinearHead,
    "dense_gelu": LinearHead,
    "dense_relu": LinearHead,
    "plain": LinearHead,
    "batch_norm": NormedHead,
    "biattentive": BiattentiveHead,
}
"""The heads by `HeadSettings.name`."""
