"""Right and wrong answers to the exercises of learn/queries_keys_values."""

import torch

RIGHT = {
    "keys-for-queries": [
        lambda W_q: torch.linalg.pinv(W_q).mT,
        lambda W_q: 100 * torch.linalg.pinv(W_q.float()).mT,
    ],
    "same-product": [
        lambda W_k, M: W_k @ torch.linalg.inv(M).mT,
        lambda W_k, M: W_k.float() @ torch.linalg.inv(M.float()).mT,
    ],
}
WRONG = {
    "keys-for-queries": [
        ("The keys are the queries: a long one wins.", lambda W_q: W_q),
        ("8), question 0 has the score -11.15 with its own key, and 2.15 with", lambda W_q: -W_q),
        ("For queries of (3, 8), question 0 has the score", torch.zeros_like),
        ("the shape is (8, 3); it should be (3, 8).", torch.linalg.pinv),
    ],
    "same-product": [
        ("2) it is off by up to 1.53. The keys are what they were; M has to be undone.", lambda W_k, M: W_k),
        ("They are multiplied by M once more", lambda W_k, M: W_k @ M),
        ("take its transpose.", lambda W_k, M: W_k @ torch.linalg.inv(M)),
        ("That is M transposed; take the inverse", lambda W_k, M: W_k @ M.mT),
        ("For keys of (3, 2) it is off by up to 2.09.", lambda W_k, M: W_k + 1),
        ("it is off by up to 0.01.", lambda W_k, M: W_k @ torch.linalg.inv(M).mT + 0.01),
    ],
}
