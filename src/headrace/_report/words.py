"""Numbers in few characters, for people."""


def short(number: float) -> str:
    """A number.

    >>> short(0.25), short(12), short(1234), short(56_789), short(1_500_000), short(2.5e9)
    ('0.25', '12', '1,234', '56.8k', '1.5M', '2.5G')
    """
    for unit, least, size in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e4, 1e3)):
        if abs(number) >= least:
            return f"{number / size:.3g}{unit}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}"


def seconds(number: float) -> str:
    """A time.

    >>> seconds(0), seconds(35e-9), seconds(0.0000357), seconds(0.25), seconds(12.3), seconds(600)
    ('0 s', '35 ns', '35.7 µs', '250 ms', '12.3 s', '600 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return "0 s"


def percent(share: float) -> str:
    """A share of 1.

    >>> percent(0.123), percent(0.00123)
    ('12%', '0.1%')
    """
    return f"{share:.0%}" if share >= 0.01 or share == 0 else f"{share:.1%}"
