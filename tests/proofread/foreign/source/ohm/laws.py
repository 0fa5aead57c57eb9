"""The laws of resistors."""


def current(voltage, resistance):
    r"""The current in amperes.

    Equation:
        $I = \frac{U}{R}$ (1)
    """
    return voltage / resistance


def series(*resistances):
    """The resistance of resistors one after the other, in ohms."""
    return sum(resistances)


def parallel(*resistances):
    r"""The resistance of resistors side by side, in ohms.

    Equation:
        $\frac{1}{R} = \sum_{k=1}^{n} \frac{1}{r_k}$ (2)
    """
    return 1 / sum(1 / resistance for resistance in resistances)
