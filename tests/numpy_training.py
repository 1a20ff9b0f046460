"""Optimizers, schedules and penalties in plain numpy: the independent source that each named row is held to.

A row of a table of the package without a row here fails ``test_tables.py``. Formulas are those of the papers,
one update at a time, in float64; nothing is imported from the package.
"""

import numpy as np


class PlainSGD:
    """Sutskever et al. 2013, with the velocity in units of the weight; the decay never exceeds the weight.

    In the convention of torch the velocity is a sum of gradients, and the decay part of the gradient.
    """

    def __init__(self, momentum=0.0, nesterov=False, convention="sklearn"):
        self.momentum, self.nesterov, self.convention, self.velocity = momentum, nesterov, convention, 0.0

    def __call__(self, w, gradient, t, eta, l2):
        if self.convention == "torch":
            g = gradient + l2 * w
            self.velocity = self.momentum * self.velocity + g
            return w - eta * (g + self.momentum * self.velocity if self.nesterov else self.velocity)
        step = -eta * gradient - min(1.0, eta * l2) * w
        self.velocity = self.momentum * self.velocity + step
        return w + (self.momentum * self.velocity + step if self.nesterov else self.velocity)


class PlainAdam:
    """Kingma and Ba 2015, algorithm 1, of the gradient of the penalised loss."""

    def __init__(self, momentum=0.0, nesterov=False, beta_1=0.9, beta_2=0.999, epsilon=1e-8, amsgrad=False):
        assert not momentum
        assert not nesterov
        self.beta_1, self.beta_2, self.epsilon, self.amsgrad = beta_1, beta_2, epsilon, amsgrad
        self.m = self.v = self.largest = 0.0

    def __call__(self, w, gradient, t, eta, l2):
        return self.moved(w, gradient + l2 * w, t, eta)

    def moved(self, w, g, t, eta):
        self.m = self.beta_1 * self.m + (1 - self.beta_1) * g
        self.v = self.beta_2 * self.v + (1 - self.beta_2) * g**2
        self.largest = np.maximum(self.largest, self.v) if self.amsgrad else self.v
        unbiased_m, unbiased_v = self.m / (1 - self.beta_1**t), self.largest / (1 - self.beta_2**t)
        return w - eta * unbiased_m / (np.sqrt(unbiased_v) + self.epsilon)


class PlainAdamW(PlainAdam):
    """Loshchilov and Hutter 2019, algorithm 2: the decay is no part of the moments."""

    def __call__(self, w, gradient, t, eta, l2):
        return self.moved(w - min(1.0, eta * l2) * w, gradient, t, eta)


def subgradient(gradient, w, l1, l2, share):
    """Return the subgradient of least norm of the objective, with a share of the penalties."""
    smooth = gradient + share * l2 * w
    inside = np.sign(smooth) * np.maximum(np.abs(smooth) - share * l1, 0.0)
    return np.where(w == 0, inside, smooth + share * l1 * np.sign(w))


class PlainBlockAdam:
    """Adam with the mean of the squares over a tensor in place of each square; a proximal step at the end.

    The proximal operator of ``k (l1 |w| + l2 w^2 / 2)``: Parikh and Boyd 2014, 6.5.2 and 6.5.3. The angle of
    the gradient and the mean of those before it, or of those of the objective, steers the rate, as in Baydin
    et al. 2018; steps are then along a mean of both.
    """

    def __init__(
        self,
        momentum=0.0,
        nesterov=False,
        beta_1=None,
        beta_2=0.999,
        steering=0.0,
        with_penalties=False,
        with_sizes=False,
        rest=0.02,
        square_rest=None,
        inertia=0.5,
    ):
        self.beta_1 = 0.9 if beta_1 is None and not steering else beta_1
        self.beta_2, self.steering, self.inertia = beta_2, steering, inertia
        self.with_penalties, self.with_sizes = with_penalties, with_sizes
        self.rest, self.square_rest = rest, square_rest
        self.m, self.v, self.factor = 0.0, 0.0, 1.0

    def n_gradients(self, t):
        if self.beta_1 is None:
            return 1 + 8 * (1 - 0.9 ** (t - 1)) + 40 * (1 - 0.995 ** (t - 1))
        return (1 - self.beta_1**t) / (1 - self.beta_1)

    def __call__(self, w, gradient, t, eta, l2, l1=0.0):
        # the weights of all gradients so far, without this one and with it
        n_before, n = (self.n_gradients(number) for number in (t - 1, t))
        before = subgradient(self.m * n_before / n, w, l1, l2, 1.0 if self.with_penalties else 0.0)
        self.m = self.m + (gradient - self.m) / n
        square = np.mean(gradient**2)
        self.v = self.beta_2 * self.v + (1 - self.beta_2) * square
        plain = eta / np.sqrt(self.v / (1 - self.beta_2**t)) if self.v > 0 else 0.0
        # the lengths of steps along the gradient, over those without an l2 penalty
        shares = 1 / (1 + self.factor * plain * l2) if self.with_penalties else 1.0
        lengths = np.linalg.norm(np.sqrt(shares) * before) * np.linalg.norm(np.sqrt(shares) * gradient)
        cosine = np.sum(shares * before * gradient) / lengths if lengths > 0 else 0.0
        size = min(square / self.v, 2.0) if self.with_sizes and self.v > 0 else 1.0
        rest = self.rest if self.square_rest is None else min(self.rest, self.square_rest * cosine**2)
        self.factor = np.clip(
            self.factor * np.exp(self.steering * size * (cosine - rest)),
            0.03,
            10.0 if self.with_sizes else 4.0,
        )
        k = self.factor * plain
        share = self.inertia if self.steering else 1.0
        w = w - k * ((1 - share) * gradient + share * self.m)
        return np.sign(w) * np.maximum(np.abs(w) - k * l1, 0) / (1 + k * l2)


class PlainRMSProp:
    """Tieleman and Hinton 2012, of the gradient of the penalised loss."""

    def __init__(self, momentum=0.0, nesterov=False, rho=0.99, epsilon=1e-8):
        self.rho, self.epsilon, self.v = rho, epsilon, 0.0

    def __call__(self, w, gradient, t, eta, l2):
        g = gradient + l2 * w
        self.v = self.rho * self.v + (1 - self.rho) * g**2
        return w - eta * g / (np.sqrt(self.v) + self.epsilon)


class PlainAdagrad:
    """Duchi et al. 2011, with a diagonal matrix, of the gradient of the penalised loss."""

    def __init__(self, momentum=0.0, nesterov=False, epsilon=1e-10):
        self.epsilon, self.v = epsilon, 0.0

    def __call__(self, w, gradient, t, eta, l2):
        g = gradient + l2 * w
        self.v = self.v + g**2
        return w - eta * g / (np.sqrt(self.v) + self.epsilon)


class PlainLion:
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, momentum=0.0, nesterov=False, beta_1=0.9, beta_2=0.99):
        self.beta_1, self.beta_2, self.m = beta_1, beta_2, 0.0

    def __call__(self, w, gradient, t, eta, l2):
        direction = np.sign(self.beta_1 * self.m + (1 - self.beta_1) * gradient)
        self.m = self.beta_2 * self.m + (1 - self.beta_2) * gradient
        return w - min(1.0, eta * l2) * w - eta * direction


OPTIMIZERS = {
    "sgd": PlainSGD,
    "adam": PlainAdam,
    "adamw": PlainAdamW,
    "block_adam": PlainBlockAdam,
    "rmsprop": PlainRMSProp,
    "adagrad": PlainAdagrad,
    "lion": PlainLion,
}


def bottou(t, eta0, power_t, alpha, n_updates):
    """Return Bottou's rate as in scikit-learn: ``1 / (alpha (t0 + t - 1))``, the first one ``alpha^-1/4``."""
    return 1 / (alpha * (1 / (alpha ** (-1 / 4) * alpha) + t - 1))


def restarted(t, eta0, power_t, alpha, n_updates):
    """Return the rate of three cosines, each twice as long as the one before (Loshchilov and Hutter 2017)."""
    left, length = t - 1, n_updates / 7
    while left >= round(length) and length < n_updates / 3:
        left, length = left - round(length), 2 * length
    return eta0 * np.cos(np.pi / 2 * left / round(length)) ** 2


def one_cycle(t, eta0, power_t, alpha, n_updates):
    """Return the rate of Smith and Topin 2018, with cosines as in torch."""
    top = 0.3 * n_updates - 1
    first, last = eta0 / 25, eta0 / 25e4
    if t - 1 <= top:
        return eta0 + (first - eta0) * np.cos(np.pi / 2 * (t - 1) / top) ** 2
    return last + (eta0 - last) * np.cos(np.pi / 2 * (t - 1 - top) / (n_updates - 1 - top)) ** 2


#: The rate of update t of n_updates while the loss improves.
SCHEDULES = {
    "constant": lambda t, eta0, power_t, alpha, n_updates: eta0,
    "optimal": bottou,
    "invscaling": lambda t, eta0, power_t, alpha, n_updates: eta0 * np.exp(-power_t * np.log(t)),
    "adaptive": lambda t, eta0, power_t, alpha, n_updates: eta0,
    "step": lambda t, eta0, power_t, alpha, n_updates: eta0 / 10 ** int(3 * (t - 1) / n_updates),
    "exponential": lambda t, eta0, power_t, alpha, n_updates: eta0 * 10 ** (-3 * (t - 1) / n_updates),
    "polynomial": lambda t, eta0, power_t, alpha, n_updates: eta0 * (n_updates + 1 - t) / n_updates,
    "cosine": lambda t, eta0, power_t, alpha, n_updates: eta0 * np.cos(np.pi * (t - 1) / n_updates / 2) ** 2,
    "cosine_restarts": restarted,
    "one_cycle": one_cycle,
    "reduce_on_plateau": lambda t, eta0, power_t, alpha, n_updates: eta0,
    # with the rate of the estimator's control, here its first one
    "auto": lambda t, eta0, power_t, alpha, n_updates: 0.05,
}

#: The coefficients of the absolute norm and of half the squared norm.
PENALTIES = {
    "l2": lambda alpha, ratio: (0, alpha),
    "l1": lambda alpha, ratio: (alpha, 0),
    "elasticnet": lambda alpha, ratio: (alpha * ratio, alpha * (1 - ratio)),
    # of one output
    "group_lasso": lambda alpha, ratio: (alpha, 0),
    # of weights that start at zero
    "l2_sp": lambda alpha, ratio: (0, alpha),
    None: lambda alpha, ratio: (0, 0),
}


def truncated(w, debt, total):
    """Apply the cumulative penalty of Tsuruoka et al. 2009, figure 2, to each weight, in place."""
    for place in np.ndindex(w.shape):
        before = w[place]
        if before > 0:
            w[place] = max(0.0, before - (total + debt[place]))
        elif before < 0:
            w[place] = min(0.0, before + (total - debt[place]))
        debt[place] += w[place] - before


def fit_line(X, y, n_epochs, batch_size, optimizer, schedule, penalty, eta0, power_t, alpha, l1_ratio, **sgd):
    """Fit a line to half the squared error, in the order of the rows; return coefficients and intercept."""
    w, b, debt, total, t = np.zeros(X.shape[1]), 0.0, np.zeros(X.shape[1]), 0.0, 0
    move_w, move_b = OPTIMIZERS[optimizer](**sgd), OPTIMIZERS[optimizer](**sgd)
    l1, l2 = PENALTIES[penalty](alpha, l1_ratio)
    own_l1 = {"l1": l1} if optimizer == "block_adam" else {}
    n_updates = n_epochs * -(-len(X) // batch_size)
    for _ in range(n_epochs):
        for start in range(0, len(X), batch_size):
            rows, t = slice(start, start + batch_size), t + 1
            residual = X[rows] @ w + b - y[rows]
            eta = SCHEDULES[schedule](t, eta0, power_t, alpha, n_updates)
            w = move_w(w, (residual[:, None] * X[rows]).mean(axis=0), t, eta, l2, **own_l1)
            b = move_b(b, residual.mean(), t, eta, 0.0)
            total += eta * l1
            if not own_l1:
                truncated(w, debt, total)
    return w, b
