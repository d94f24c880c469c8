"""transformers' DeepseekV32ForCausalLM with given weights, and its stages in this program's names and layouts.

The names on the left are the GGUF's. What transformers keeps differently (kv_b in one piece, gate and up fused, rotated
pairs split into halves, experts unsorted) is put in the GGUF's or the specification's order here, and only here.
"""

import torch
import transformers
import transformers.models.deepseek_v32.modeling_deepseek_v32 as modeling

from forward_reference import selected_positions


def transformers_model(cfg, weights):
    """DeepseekV32ForCausalLM in float32 with the GGUF's weights."""
    config = transformers.DeepseekV32Config(
        vocab_size=cfg["vocab"],
        hidden_size=cfg["dim"],
        intermediate_size=cfg["inter"],
        moe_intermediate_size=cfg["moe_inter"],
        num_hidden_layers=cfg["n_layers"],
        first_k_dense_replace=cfg["n_dense_layers"],
        num_attention_heads=cfg["n_heads"],
        num_key_value_heads=cfg["n_heads"],
        q_lora_rank=cfg["q_rank"],
        kv_lora_rank=cfg["kv_rank"],
        qk_nope_head_dim=cfg["nope"],
        qk_rope_head_dim=cfg["rope"],
        v_head_dim=cfg["v"],
        index_n_heads=cfg["index_heads"],
        index_head_dim=cfg["index_dim"],
        index_topk=cfg["index_topk"],
        n_routed_experts=cfg["n_experts"],
        num_experts_per_tok=cfg["n_active_experts"],
        n_shared_experts=1,
        n_group=cfg["n_groups"],
        topk_group=cfg["n_limited_groups"],
        routed_scaling_factor=cfg["route_scale"],
        norm_topk_prob=True,
        rms_norm_eps=1e-6,
        max_position_embeddings=int(cfg["rope_factor"] * cfg["rope_original"]),
        tie_word_embeddings=False,
        rope_parameters=dict(
            rope_type="yarn",
            rope_theta=cfg["rope_theta"],
            factor=cfg["rope_factor"],
            original_max_position_embeddings=cfg["rope_original"],
            beta_fast=32,
            beta_slow=1,
            mscale=1.0,
            mscale_all_dim=1.0,
        ),
    )
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = modeling.DeepseekV32ForCausalLM(config).float().eval()
    model.load_state_dict(transformers_names(cfg, weights), strict=True)
    return model


def transformers_names(cfg, weights):
    w = {name: torch.from_numpy(array) for name, array in weights.items()}
    state = {
        "model.embed_tokens.weight": w["token_embd.weight"],
        "model.norm.weight": w["output_norm.weight"],
        "lm_head.weight": w["output.weight"],
    }
    same = {
        "attn_norm.weight": "input_layernorm.weight",
        "attn_q_a.weight": "self_attn.q_a_proj.weight",
        "attn_q_a_norm.weight": "self_attn.q_a_layernorm.weight",
        "attn_q_b.weight": "self_attn.q_b_proj.weight",
        "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight",
        "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight",
        "attn_output.weight": "self_attn.o_proj.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
        "indexer.k_norm.weight": "self_attn.indexer.k_norm.weight",
        "indexer.k_norm.bias": "self_attn.indexer.k_norm.bias",
        "indexer.proj.weight": "self_attn.indexer.weights_proj.weight",
        "indexer.attn_k.weight": "self_attn.indexer.wk.weight",
        "indexer.attn_q_b.weight": "self_attn.indexer.wq_b.weight",
    }
    dense = {f"ffn_{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    shared = {
        f"ffn_{part}_shexp.weight": f"mlp.shared_experts.{part}_proj.weight"
        for part in ("gate", "up", "down")
    }
    sparse = shared | {
        "ffn_gate_inp.weight": "mlp.gate.weight",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        "ffn_down_exps.weight": "mlp.experts.down_proj",
    }
    for layer in range(cfg["n_layers"]):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        is_dense = layer < cfg["n_dense_layers"]
        for name, their_name in (same | (dense if is_dense else sparse)).items():
            state[theirs + their_name] = w[ours + name]
        kv_b = torch.cat([w[ours + "attn_k_b.weight"].transpose(1, 2), w[ours + "attn_v_b.weight"]], dim=1)
        state[theirs + "self_attn.kv_b_proj.weight"] = kv_b.flatten(0, 1)
        if not is_dense:
            halves = [w[ours + "ffn_gate_exps.weight"], w[ours + "ffn_up_exps.weight"]]
            state[theirs + "mlp.experts.gate_up_proj"] = torch.cat(halves, dim=1)
    return state


class StageHooks:
    """Collects, during one prefill by transformers, every stage in the layouts of the C++ program: [n_tokens, width]."""

    def __init__(self, model, cfg):
        self.cfg, self.stages, self.handles = cfg, {}, []
        self.ropes = {"main": [], "index": []}
        self.saved = (modeling.apply_rotary_pos_emb_interleave, modeling.apply_rotary_pos_emb)
        modeling.apply_rotary_pos_emb_interleave = self._recording("main", self.saved[0])
        modeling.apply_rotary_pos_emb = self._recording("index", self.saved[1])
        for i, layer in enumerate(model.model.layers):
            attention, indexer = layer.self_attn, layer.self_attn.indexer
            self._hook(i, "attn_norm", layer.input_layernorm)
            self._hook(i, "qr", attention.q_a_layernorm)
            self._hook(i, "q", attention.q_b_proj)
            self._hook(i, "latent_row", attention.kv_a_layernorm)
            self._hook(i, "index_q", indexer.wq_b)
            self._hook(i, "index_k", indexer.k_norm)
            self._hook(i, "index_weights", indexer.weights_proj)
            self._hook(i, "selected", indexer)
            self._hook(i, "attention_out", attention)
            self._hook(i, "ffn_norm", layer.post_attention_layernorm)
            if i >= cfg["n_dense_layers"]:
                self._hook(i, "router", layer.mlp.gate)
            self._hook(i, "ffn_out", layer.mlp)
            self._hook(i, "h", layer)
        self.handles.append(
            model.model.norm.register_forward_hook(
                lambda module, inputs, output: self.stages.update(final_norm=output[0])
            )
        )

    def _hook(self, layer, stage, module):
        def keep(_, inputs, output):
            self.stages[f"layer.{layer}.{stage}"] = (
                output
                if stage == "router"
                else (output[0] if isinstance(output, tuple) else output).flatten(0, 1)
            )

        self.handles.append(module.register_forward_hook(keep))

    def _recording(self, which, function):
        def rope(q, k, *args, **kwargs):
            out = function(q, k, *args, **kwargs)
            self.ropes[which].append(out)
            return out

        return rope

    def finish(self):
        """Removes the hooks and puts rotated parts, scales and orders in their places."""
        modeling.apply_rotary_pos_emb_interleave, modeling.apply_rotary_pos_emb = self.saved
        for handle in self.handles:
            handle.remove()
        for layer in range(self.cfg["n_layers"]):
            self._finish_layer(f"layer.{layer}.", self.ropes["main"][layer], self.ropes["index"][layer])
        return self.stages

    def _finish_layer(self, at, main, index):
        cfg, s = self.cfg, self.stages
        n = len(s[at + "h"])
        # transformers leaves rotated pairs as (all first halves | all second halves); the spec rotates them in place.
        q_pe, k_pe = (torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2) for x in main)
        q = s[at + "q"].view(n, cfg["n_heads"], -1)
        s[at + "q"] = torch.cat([q[..., : cfg["nope"]], q_pe[0].transpose(0, 1)], dim=-1).flatten(1)
        s[at + "latent_row"] = torch.cat([s[at + "latent_row"], k_pe[0, 0]], dim=-1)
        q = s[at + "index_q"].view(n, cfg["index_heads"], -1)
        s[at + "index_q"] = torch.cat([index[0][0], q[..., cfg["rope"] :]], dim=-1).flatten(1)
        s[at + "index_k"] = torch.cat([index[1][0, :, 0], s[at + "index_k"][:, cfg["rope"] :]], dim=-1)
        s[at + "index_weights"] = (
            s[at + "index_weights"] * cfg["index_heads"] ** -0.5 * cfg["index_dim"] ** -0.5
        )
        chosen = torch.zeros(n, n, dtype=torch.bool).scatter(-1, s[at + "selected"].long(), True).tril()
        s[at + "selected"] = selected_positions(chosen, cfg["index_topk"])
        if at + "router" in s:
            _, weights, experts = s.pop(at + "router")
            s[at + "experts"], order = experts.sort(-1)
            s[at + "expert_weights"] = weights.gather(-1, order)
