"""Published algorithm of Blaas et al. (2020): slow; the fast bounds are compared with it."""
