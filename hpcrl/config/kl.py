"""What it costs a policy to leave its reference."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from hpcrl.config.bounds import NonNegative, Positive
from hpcrl.config.ema import EMAConfig
from hpcrl.config.fields import ChangeClass


@dataclass(frozen=True, kw_only=True)
class KLConfig:
    """The price of leaving the reference."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    mode: Annotated[Literal["none", "reward", "loss"], ChangeClass.FORK] = "none"
    """Where the penalty is: in each token's reward, in the loss, or nowhere; then there is no reference."""
    coef: NonNegative = 1e-3
    """Weight of the penalty, or its first value if adaptive; a run that has trained goes on from its recorded value. At
    0 there is no reference."""
    estimator: Literal["k1", "k2", "k3", "abs"] | None = None
    """Of d = log p_actor - log p_reference of a sampled token: d, d²/2, exp(-d) - 1 + d (d within ±20, the result
    within ±10) or |d|; null: k1 in the reward, k3 in the loss."""
    adaptive: Annotated[bool, ChangeClass.FORK] = False
    """Steer the weight so that the KL stays near target (Ziegler et al. 2019)."""
    target: Annotated[Positive, ChangeClass.FORK] = 0.1
    """The KL per token that an adaptive weight aims at."""
    horizon: Annotated[Positive, ChangeClass.FORK] = 10_000.0
    """Samples over which an adaptive weight moves by a fifth at most; a step has fewer than five times as many."""
    reference_ema: EMAConfig = EMAConfig()
    """Whether the reference follows the actor."""

    @property
    def used(self) -> bool:
        """Whether there is a reference."""
        return self.mode != "none" and self.coef > 0

    @property
    def by(self) -> str:
        """The estimator."""
        return self.estimator or ("k3" if self.mode == "loss" else "k1")
