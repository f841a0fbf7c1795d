// Lines of a log of events as people read them. hpcrl/inspect/log_lines.py has the same in Python, for any line; here
// are the lines that the product writes every day. Of any other (escapes, letters beyond ASCII, a traceback, damage)
// nothing is decided: the caller gets it back.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

constexpr int64_t kLongest = 8 << 10;
constexpr int64_t kLatest = 10000000000000000;  // microseconds since 1970 of any line
constexpr int kDeepest = 16;  // brackets in brackets

struct Text {
    const char* at;
    const char* end;

    bool is(char wanted) const { return at < end && *at == wanted; }

    bool skip(const char* wanted) {
        const size_t size = std::strlen(wanted);
        if (static_cast<size_t>(end - at) < size || std::memcmp(at, wanted, size)) return false;
        at += size;
        return true;
    }

    int digits() {
        const char* begin = at;
        while (at < end && *at >= '0' && *at <= '9') ++at;
        return static_cast<int>(at - begin);
    }
};

struct Part {
    const char* begin;
    const char* end;
    bool bare = true;  // has no space, and something

    bool operator==(const char* other) const {
        return std::strlen(other) == static_cast<size_t>(end - begin) && !std::memcmp(begin, other, end - begin);
    }
};

// Without its quotes.
bool read_string(Text& text, Part& found) {
    if (!text.skip("\"")) return false;
    found = {text.at, text.at, true};
    for (; text.at < text.end && *text.at != '"'; ++text.at) {
        if (*text.at < ' ' || *text.at > '~' || *text.at == '\\') return false;
        if (*text.at == ' ') found.bare = false;
    }
    found.end = text.at;
    if (found.begin == found.end) found.bare = false;
    return text.skip("\"");
}

enum class Number { none, whole, broken };

Number read_number(Text& text) {
    const bool negative = text.skip("-");
    const char* begin = text.at;
    const int whole = text.digits();
    if (!whole || whole > 18 || (whole > 1 && *begin == '0')) return Number::none;
    if (!text.is('.') && !text.is('e')) return negative && *begin == '0' ? Number::none : Number::whole;
    if (text.skip(".")) {
        const int fraction = text.digits();
        if (!fraction || fraction > 40) return Number::none;
    }
    if (text.skip("e")) {
        if (!text.skip("-")) text.skip("+");
        const int exponent = text.digits();
        if (!exponent || exponent > 2) return Number::none;
    }
    return Number::broken;
}

// A list or a table without spaces and fractions: it is shown as it stands.
bool read_nested(Text& text, int depth) {
    if (text.skip("true") || text.skip("false") || text.skip("null")) return true;
    Part part{};
    if (text.is('"')) return read_string(text, part) && (part.bare || part.begin == part.end);
    const bool table = text.is('{');
    if (!table && !text.is('[')) return read_number(text) == Number::whole;
    const char* closing = table ? "}" : "]";
    ++text.at;
    if (depth == kDeepest) return false;
    if (text.skip(closing)) return true;
    do {
        if (table && !(read_string(text, part) && (part.bare || part.begin == part.end) && text.skip(":"))) return false;
        if (!read_nested(text, depth + 1)) return false;
    } while (text.skip(","));
    return text.skip(closing);
}

char* put(char* out, const char* begin, const char* end) {
    std::memcpy(out, begin, end - begin);
    return out + (end - begin);
}

char* put_value(char* out, Text& text) {
    const char* begin = text.at;
    if (text.is('"')) {
        Part part{};
        if (!read_string(text, part)) return nullptr;
        return part.bare ? put(out, part.begin, part.end) : put(out, begin, text.at);
    }
    if (text.is('-') || (text.at < text.end && *text.at >= '0' && *text.at <= '9')) {
        const Number kind = read_number(text);
        if (kind == Number::none) return nullptr;
        if (kind == Number::whole) return put(out, begin, text.at);
        return out + std::snprintf(out, 16, "%.6g", std::strtod(begin, nullptr));
    }
    return read_nested(text, 0) ? put(out, begin, text.at) : nullptr;
}

// Seconds with six digits behind the point, as microseconds.
bool read_time(Text& text, int64_t& time) {
    const char* begin = text.at;
    const int whole = text.digits();
    if (!whole || whole > 9 + 1 || (whole > 1 && *begin == '0') || !text.skip(".") || text.digits() != 6) return false;
    time = 0;
    for (const char* at = begin; at < text.at; ++at) {
        if (*at != '.') time = 10 * time + (*at - '0');
    }
    return true;
}

class Clock {
  public:
    char* put(char* out, int64_t time) {
        if (const int64_t second = time / 1000000; second != second_) {
            second_ = second;
            const time_t when = second;
            struct tm local;
            localtime_r(&when, &local);
            std::strftime(shown_, sizeof shown_, "%H:%M:%S.", &local);
        }
        const int thousandths = static_cast<int>(time / 1000 % 1000);
        out = ::put(out, shown_, shown_ + 9);
        *out++ = static_cast<char>('0' + thousandths / 100);
        *out++ = static_cast<char>('0' + thousandths / 10 % 10);
        *out++ = static_cast<char>('0' + thousandths % 10);
        return out;
    }

  private:
    int64_t second_ = -1;
    char shown_[16] = {};
};

bool is_known(const char* names, const Part& name) {
    const size_t size = name.end - name.begin;
    for (const char* at = names; (at = std::strchr(at, '\n')) && *++at;) {
        if (!std::strncmp(at, name.begin, size) && at[size] == '\n') return true;
    }
    return false;
}

// What stands behind the time and mono of a line; the end of what was put, or nothing.
char* put_words(char* out, Text& text, const char* names) {
    Part name{};
    if (!text.skip(",\"seq\":")) return nullptr;
    if (read_number(text) != Number::whole || !text.skip(",\"event\":")) return nullptr;
    if (!read_string(text, name) || !is_known(names, name)) return nullptr;
    out = put(out, name.begin, name.end);
    while (text.skip(",")) {
        Part key{};
        if (!read_string(text, key) || !text.skip(":")) return nullptr;
        if (key == "time" || key == "mono" || key == "seq" || key == "event" || key == "traceback") return nullptr;
        *out++ = ' ';
        out = put(out, key.begin, key.end);
        *out++ = '=';
        if (!(out = put_value(out, text))) return nullptr;
    }
    return text.skip("}") && text.at == text.end ? out : nullptr;
}

}  // namespace

// Shows the lines of `block` up to the first that it does not know, or that has no end; returns how many. Times are
// microseconds: a line's own or, `by_mono`, its mono, with `base` added; none is below `newest`. `names` are those of
// events, each between two line ends. `counts`: what was read of the block, and what was put into `out`, which needs
// room for twice the block, and for a clock and `who` a line.
extern "C" int64_t hpcrl_log_lines(const char* block, int64_t size, const char* names, const char* who,
                                   int64_t who_size, int64_t by_mono, int64_t base, int64_t newest, char* out,
                                   int64_t* times, int64_t* counts) {
    Clock clock;
    const char* const end = block + size;
    const char* at = block;
    char* written = out;
    int64_t lines = 0;
    while (at < end) {
        const char* stop = static_cast<const char*>(std::memchr(at, '\n', end - at));
        if (!stop || stop - at > kLongest) break;
        Text text{at, stop};
        int64_t time, mono;
        if (!text.skip("{\"time\":") || !read_time(text, time)) break;
        if (!text.skip(",\"mono\":") || !read_time(text, mono)) break;
        time = (by_mono ? mono : time) + base;
        if (time < 0 || time >= kLatest) break;
        if (time < newest) time = newest;
        char* words = put(clock.put(written, time), who, who + who_size);
        if (!(words = put_words(words, text, names))) break;
        *words++ = '\n';
        written = words;
        newest = times[lines++] = time;
        at = stop + 1;
    }
    counts[0] = at - block;
    counts[1] = written - out;
    return lines;
}
