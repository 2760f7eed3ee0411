/* native_target.cpp: names that have to be demangled, a stack below a catch, a destructor and a lambda. */
#include <functional>
#include <stdexcept>
#include <unistd.h>
#include <vector>

namespace shop {

static volatile int sink;
static volatile bool always = true;

template <typename T> struct Counter {
    virtual ~Counter() = default;
    __attribute__((noinline)) virtual T count(const std::vector<T> &items, T first)
    {
        if (write(1, "ready\n", 6) < 0)
            _exit(1);
        while (always)
            pause();
        return first + static_cast<T>(items.size());
    }
};

namespace {
__attribute__((noinline)) long hidden(Counter<long> &counter)
{
    return counter.count({1, 2, 3}, 4) + sink;
}
}

__attribute__((noinline)) int operator_user(int x)
{
    std::function<int(int)> run = [](int y) {
        Counter<long> counter;
        return static_cast<int>(hidden(counter)) + y + sink;
    };
    try {
        throw std::runtime_error("sold out");
    } catch (const std::exception &) {
        return run(x) + sink;
    }
}

}

int main(int argc, char **)
{
    return shop::operator_user(argc) + shop::sink;
}
