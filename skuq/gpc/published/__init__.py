"""Published algorithm of Blaas et al. (2020), a slow reference for the fast bounds."""
