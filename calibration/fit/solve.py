"""Bounded least squares in the logarithm of the parameters (Levenberg-Marquardt with projection).
Knows only vectors."""

import math


def solve_linear(matrix, right):
    """Gaussian elimination with partial pivoting."""
    n = len(right)
    rows = [list(matrix[i]) + [right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            for c in range(i, n + 1):
                rows[r][c] -= factor * rows[i][c]
    out = [0.0] * n
    for i in reversed(range(n)):
        out[i] = (rows[i][n] - sum(rows[i][c] * out[c] for c in range(i + 1, n))) / rows[i][i]
    return out


def least_squares(residuals, start, low, high, rounds=25, evaluate=map):
    """Minimises the sum of squared residuals over low <= value <= high; all positive.

    `residuals` maps a list of values to a list of floats; `evaluate` is `map` or a parallel map.
    """
    x = [math.log(v) for v in start]
    bottom, top = [math.log(v) for v in low], [math.log(v) for v in high]
    n, step, damping = len(x), 0.02, 1e-2

    def values(point):
        return [math.exp(v) for v in point]

    best = residuals(values(x))
    cost = sum(r * r for r in best)
    for _ in range(rounds):
        shifted = []
        for i in range(n):
            point = list(x)
            point[i] += step if x[i] + step <= top[i] else -step
            shifted.append(point)
        columns = list(evaluate(residuals, [values(p) for p in shifted]))
        slopes = [
            [(columns[i][k] - best[k]) / (shifted[i][i] - x[i]) for k in range(len(best))]
            for i in range(n)
        ]
        gradient = [sum(s * r for s, r in zip(slopes[i], best)) for i in range(n)]
        # A parameter that presses against its bound is left out of this round.
        free = [
            i for i in range(n)
            if not (x[i] >= top[i] and gradient[i] < 0 or x[i] <= bottom[i] and gradient[i] > 0)
        ]
        improved = False
        for _ in range(8):
            normal = [
                [
                    sum(a * b for a, b in zip(slopes[i], slopes[j]))
                    * (1 + damping if i == j else 1) + (1e-9 if i == j else 0)
                    for j in free
                ]
                for i in free
            ]
            move = solve_linear(normal, [-gradient[i] for i in free])
            trial = list(x)
            for i, d in zip(free, move):
                trial[i] = min(top[i], max(bottom[i], x[i] + max(-0.7, min(0.7, d))))
            result = residuals(values(trial))
            trial_cost = sum(r * r for r in result)
            if trial_cost < cost:
                done = cost - trial_cost < 1e-5 * cost
                x, best, cost, damping, improved = trial, result, trial_cost, damping / 3, True
                break
            damping *= 4
        if not improved or done:
            break
    return values(x), cost
