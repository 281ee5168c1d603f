"""Choice of the device that computes."""

import torch


def resolve_device(device: str | torch.device) -> torch.device:
    """Turn a ``device`` parameter into a usable torch device.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"`` takes CUDA if there is one and the CPU otherwise; anything else is
        a torch device name.

    Returns
    -------
    torch.device

    Raises
    ------
    ValueError
        If the name is not one torch knows, or the device is not present here.

    Examples
    --------
    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"`device`={str(device)!r} cannot be used here ({str(error).splitlines()[0]}); "
            "use 'auto' or 'cpu'."
        ) from error
    return resolved
