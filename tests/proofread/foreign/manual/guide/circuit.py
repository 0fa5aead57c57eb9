# %% [markdown]
# # A circuit
#
# Twice the voltage drives twice<!--= doubled / single --> the current.

# %%
import ohm

single, doubled = ohm.current(12, 8), ohm.current(24, 8)
single, doubled

# %% [markdown]
# So 12<!--~ chosen --> volts drive 1.5<!--= single --> amperes through 8<!--~ chosen --> ohms, as
#
# $$I = \frac{U}{R} \tag{1}$$
# <!-- where: U, R = random("", ""); I = ohm.current(U, R) -->
#
# says.
