"""Trainings by frameworks, each a small random model on the CPU that counts with callbacks of its own: for tests
against what is told of them. A program waits for the file of its first argument before it trains, prints what it
counted as JSON in a line that begins with "counted", and waits until it is killed."""

HEAD = """
import json, logging, os, sys, time, warnings
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", KERAS_BACKEND="torch", CUDA_VISIBLE_DEVICES="")
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
import torch, torch.nn as nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0); torch.set_num_threads(1)
def begin():
    print("ready", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
def over(**counted):
    print("\\ncounted " + json.dumps(counted), flush=True)
    time.sleep(600)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(8, 32), nn.Linear(32, 1)
    def forward(self, x):
        return self.head(torch.relu(self.stem(x)))
class Points(Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        torch.manual_seed(i)
        return torch.randn(8)
"""

LIGHTNING = HEAD + """
import lightning as L
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.steps, self.evaluated, self.batches, self.losses = Net(), 0, 0, 0, []
    def training_step(self, batch, index):
        self.batches += 1
        loss = self.net(batch).square().mean()
        self.log("loss", loss)
        self.last = float(loss.detach())
        return loss
    def on_before_optimizer_step(self, optimizer):
        self.losses.append(self.last)
    def validation_step(self, batch, index):
        self.evaluated += 1
        self.net(batch)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)
model = Model()
trainer = L.Trainer(max_epochs=4, accumulate_grad_batches=2, accelerator="cpu", devices=1, logger=False, num_sanity_val_steps=2,
                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
begin()
trainer.fit(model, DataLoader(Points(12 * 16), batch_size=16), DataLoader(Points(3 * 24), batch_size=24))
over(steps=trainer.global_step, batches=model.batches, evaluated=model.evaluated, samples=32, eval_samples=24, lr=0.003, epochs=4,
     losses=model.losses, unseen_steps=1, sanity=2, numbers=True)
"""

# Steps its optimizers itself, two for each batch; Lightning counts both.
LIGHTNING_MANUAL = HEAD + """
import lightning as L
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.automatic_optimization, self.numbers = Net(), Net(), False, []
    def training_step(self, batch, index):
        self.numbers.append(self.trainer.global_step)
        for net, optimizer in zip((self.one, self.other), self.optimizers()):
            self.manual_backward(net(batch).square().mean())
            optimizer.step(); optimizer.zero_grad()
    def configure_optimizers(self):
        return [torch.optim.SGD(net.parameters(), lr=0.01) for net in (self.one, self.other)]
model = Model()
trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                    enable_model_summary=False)
begin()
trainer.fit(model, DataLoader(Points(12 * 16), batch_size=16))
over(numbers=model.numbers)
"""

FABRIC = HEAD + """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1)
net = Net()
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
data = fabric.setup_dataloaders(DataLoader(Points(12 * 16), batch_size=16))
held = fabric.setup_dataloaders(DataLoader(Points(3 * 24), batch_size=24))
begin()
steps, evaluated, losses = 0, 0, []
for epoch in range(3):
    for batch in data:
        loss = model(batch).square().mean()
        fabric.backward(loss)
        optimizer.step(); optimizer.zero_grad(); steps += 1; losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        for batch in held:
            model(batch); evaluated += 1
    model.train()
over(steps=steps, batches=steps, evaluated=evaluated, samples=16, eval_samples=24, lr=0.01, epochs=3, losses=losses, unseen_steps=1)
"""

TRANSFORMERS = HEAD + """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
class Tokens(Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        torch.manual_seed(i)
        ids = torch.randint(0, 64, (16,))
        return {"input_ids": ids, "labels": ids}
class Count(TrainerCallback):
    steps = evaluated = batches = 0
    norms, losses = [], []
    def on_step_end(self, *args, **named):
        self.steps += 1
        self.batches += 1
    def on_substep_end(self, *args, **named):
        self.batches += 1
    def on_prediction_step(self, *args, **named):
        self.evaluated += 1
    def on_log(self, args, state, control, logs=None, **named):
        if "grad_norm" in logs:
            self.norms.append(float(logs["grad_norm"])); self.losses.append(float(logs["loss"]))
count = Count()
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
import tempfile
trainer = Trainer(model, TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=4, per_device_eval_batch_size=8, num_train_epochs=3,
                  gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=7, logging_steps=1, report_to=[], save_strategy="no",
                  use_cpu=True, disable_tqdm=True, learning_rate=0.001, max_grad_norm=0.5),
                  train_dataset=Tokens(64), eval_dataset=Tokens(24), callbacks=[count])
begin()
sys.stdout, out = open(os.devnull, "w"), sys.stdout
trainer.train()
sys.stdout = out
over(steps=trainer.state.global_step, batches=count.batches, evaluated=count.evaluated, samples=8, tokens=128, eval_samples=8, epochs=3,
     lr=None, norms=count.norms, losses=count.losses, unseen_steps=1, numbers=True)
"""

# Two trainings, and then a loop without a framework, while the trainers of both are still there.
TRAININGS_IN_TURN = HEAD + """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
import tempfile
class Tokens(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, i):
        ids = torch.full((16,), i)
        return {"input_ids": ids, "labels": ids}
def trainer(size):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2))
    return Trainer(model, TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=size, max_steps=20, report_to=[], save_strategy="no",
                   logging_steps=1000, use_cpu=True, disable_tqdm=True), train_dataset=Tokens())
trainers = [trainer(4), trainer(5)]
begin()
sys.stdout, out = open(os.devnull, "w"), sys.stdout
for each in trainers:
    each.train()
sys.stdout = out
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(20):
    net(torch.randn(6, 8)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
over(steps=[each.state.global_step for each in trainers])
"""

ACCELERATE = HEAD + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = Net()
net, optimizer, data, held = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), DataLoader(Points(12 * 16), batch_size=16),
                                                 DataLoader(Points(3 * 24), batch_size=24))
begin()
steps, batches, evaluated, losses = 0, 0, 0, []
for epoch in range(4):
    for batch in data:
        with accelerator.accumulate(net):
            loss = net(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step(); optimizer.zero_grad(); batches += 1; steps += accelerator.sync_gradients
            if accelerator.sync_gradients:
                losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        for batch in held:
            net(batch); evaluated += 1
    net.train()
over(steps=steps, batches=batches, evaluated=evaluated, samples=32, eval_samples=24, lr=0.01, epochs=4, losses=losses, unseen_steps=1)
"""

PEFT = HEAD + """
from peft import LoraConfig, get_peft_model
model = get_peft_model(Net(), LoraConfig(r=2, target_modules=["stem"]))
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
begin()
steps, losses = 0, []
for batch in DataLoader(Points(30 * 16), batch_size=16):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step(); optimizer.zero_grad(); steps += 1; losses.append(loss.item())
over(steps=steps, batches=steps, evaluated=0, samples=16, lr=0.01, losses=losses, unseen_steps=1)
"""

KERAS = HEAD + """
import keras
import numpy as np
class Count(keras.callbacks.Callback):
    steps = evaluated = 0
    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
    def on_test_batch_end(self, batch, logs=None):
        self.evaluated += 1
model = keras.Sequential([keras.layers.Dense(32, activation="relu", name="first"), keras.layers.Dense(1, name="second")])
model.compile("adam", "mse")
x = np.random.rand(12 * 16, 8).astype("float32")
model.fit(x[:16], x[:16, :1], verbose=0)
count = Count()
begin()
model.fit(x, x[:, :1], batch_size=16, epochs=5, verbose=0, validation_data=(x[:72], x[:72, :1]), validation_batch_size=24, callbacks=[count])
over(steps=count.steps, batches=count.steps, evaluated=count.evaluated, samples=16, eval_samples=24, epochs=5, unseen_steps=16)
"""

DEEPSPEED = HEAD + """
os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
import deepspeed, deepspeed.comm.torch, torch.distributed
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # it compiles C++
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1] + ".store", rank=0, world_size=1)
net = Net()
engine, optimizer, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), dist_init_required=False, config={
    "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}, "torch_adam": True}})
begin()
batches, losses, evaluated = 0, [], 0
for epoch in range(4):
    for batch in DataLoader(Points(12 * 16), batch_size=16):
        loss = engine(batch).square().mean()
        engine.backward(loss)
        if engine.is_gradient_accumulation_boundary():
            losses.append(loss.item())
        engine.step(); batches += 1
    engine.eval()
    with torch.no_grad():
        for batch in DataLoader(Points(3 * 24), batch_size=24):
            engine(batch); evaluated += 1
    engine.train()
over(steps=engine.global_steps, batches=batches, evaluated=evaluated, samples=32, eval_samples=24, lr=0.01, epochs=4, losses=losses,
     unseen_steps=1, numbers=True)
"""

SERVER = HEAD + """
import threading, urllib.request
import uvicorn
from fastapi import FastAPI
net, app = Net().eval(), FastAPI()
@app.get("/predict")
def predict():
    with torch.inference_mode():
        return {"y": float(net(torch.randn(2, 8)).sum())}
server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.01)
port = server.servers[0].sockets[0].getsockname()[1]
def client(n):
    for _ in range(n):
        urllib.request.urlopen("http://127.0.0.1:%d/predict" % port).read()
begin()
clients = [threading.Thread(target=client, args=(100,)) for _ in range(2)]
for each in clients: each.start()
for each in clients: each.join()
over(requests=200)
"""

TRAININGS = {"lightning": LIGHTNING, "fabric": FABRIC, "transformers": TRANSFORMERS, "accelerate": ACCELERATE,
             "peft": PEFT, "keras": KERAS, "deepspeed": DEEPSPEED}
PACKAGES = {"fabric": "lightning"}  # others have their own name
# Paths that their models have, of those that are called.
PATHS = {"lightning": ("stem", "head"), "fabric": ("stem", "head"), "accelerate": ("stem", "head"),
         "deepspeed": ("stem", "head"),
         "transformers": ("transformer.wte", "transformer.h.1.attn.c_proj", "lm_head"),
         "peft": ("stem.base_layer", "stem.lora_A.default", "head"), "keras": ("first", "second")}
