"""A small ResNet on synthetic images, with a data loader that has workers: what a training of images looks like.

    python examples/imagenet.py [--epochs N] [--workers N]

`loss` and `acc1` are locals of `train`. docs/torch.md says what to ask of it.
"""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10


class Images(Dataset):
    """Noise, brighter in the channel and corner that its class stands for."""

    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        label = i % CLASSES
        image = torch.randn(3, self.size, self.size, generator=torch.Generator().manual_seed(i))
        image[label % 3, : self.size // 2, (label // 3) * 3:] += 1
        return image, label


class Residual(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.skip = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1)
        self.layer1, self.layer2, self.layer3 = Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.fc(self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3)))


def train(loader, model, criterion, optimizer, epoch):
    model.train()
    for images, target in loader:
        output = model(images)
        loss = criterion(output, target)
        acc1 = (output.argmax(1) == target).float().mean() * 100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch %d loss %.3f acc1 %.1f" % (epoch, loss.item(), acc1.item()), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--images", type=int, default=640)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
    loader = DataLoader(Images(args.images, args.size), args.batch_size, shuffle=True, num_workers=args.workers)
    for epoch in range(args.epochs):
        train(loader, model, nn.CrossEntropyLoss(), optimizer, epoch)
        scheduler.step()


if __name__ == "__main__":
    main()
