package command

import (
	"net/http"
	"regexp"
	"sync"
	"time"
)

// clocks compares the clocks of pods with the API server's, by the header Date of answers: of the API server's own, and
// of those that it passes on from pods.
type clocks struct {
	mutex sync.Mutex
	// ahead says by pod how far its clock is ahead of this machine's: the least and the most that agree with every
	// answer. The empty name is the API server.
	ahead map[string][2]time.Duration
}

var proxied = regexp.MustCompile(`/namespaces/([^/]+/)pods/([^/:]+):\d+/proxy/`)

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// wrap returns a round tripper that notes the times of the answers.
func (c *clocks) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		sent, pod := time.Now(), ""
		answer, err := next.RoundTrip(request)
		if err != nil {
			return nil, err
		}
		if match := proxied.FindStringSubmatch(request.URL.Path); match != nil {
			pod = match[1] + match[2]
		}
		date, err := http.ParseTime(answer.Header.Get("Date"))
		if err != nil || pod != "" && answer.StatusCode != http.StatusOK { // such an error may be the API server's own
			return answer, nil
		}
		c.mutex.Lock()
		defer c.mutex.Unlock()
		least, most := time.Until(date), date.Add(time.Second).Sub(sent) // Date has no fraction
		if before, ok := c.ahead[pod]; ok {
			least, most = max(before[0], least), min(before[1], most)
		}
		c.ahead[pod] = [2]time.Duration{least, most}
		return answer, nil
	})
}

// apart returns by how much, at least, each pod's clock and the API server's differ. A clock that was set meanwhile, so
// that no value agrees with every answer, is not compared.
func (c *clocks) apart() map[string]time.Duration {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	apart := map[string]time.Duration{}
	here, ok := c.ahead[""]
	for pod, there := range c.ahead {
		if ok && pod != "" && here[0] <= here[1] && there[0] <= there[1] {
			apart[pod] = max(there[0]-here[1], here[0]-there[1], 0)
		}
	}
	return apart
}
