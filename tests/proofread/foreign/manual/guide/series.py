# %% [markdown]
# # Series and parallel
#
# Side by side, two equal resistors have half<!--= side_by_side / ohms --> the resistance of one.

# %%
from ohm import parallel, series

ohms = 10.0
one_after_the_other, side_by_side = series(ohms, ohms), parallel(ohms, ohms)
one_after_the_other, side_by_side

# %% [markdown]
# !!! note "20<!--= one_after_the_other --> ohms, or 5<!--= side_by_side -->"
#
#     In series they add up; in parallel their inverses do:
#
#     $$\frac{1}{R} = \sum_{k=1}^{n} \frac{1}{r_k} \tag{2}$$
#     <!-- where: r = np.array([3.0, 5.0, 11.0]); n = len(r); R = parallel(*r) -->
