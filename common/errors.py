"""The one exception that stands for a user's mistake."""


class UserError(ValueError):
    """A mistake of the caller: one line that names the value and the cure.

    The commands print it after ``error:`` and exit with code 2; library users see an ordinary ``ValueError``.
    """
